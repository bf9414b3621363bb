"""Looks at a recurrent map at fixed addresses: kernel calls are built once, then repeated.

For a small net, building a call in Python takes longer than the call itself.
`arithmetic.growth.bound_` does the same for any tensors.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.correct_direction import (
    LEFT_ITERATIONS,
    LOOKS,
    NORMAL,
    CorrectDirectionCall,
)
from pathsgd.kernels.follow_directions import (
    FIXED,
    ITERATIONS,
    MEMORY,
    RIPE,
    SETTLE,
    Directions,
    FollowDirectionsCall,
    Map,
    alike,
    coefficients,
)
from pathsgd.kernels.native import address

_NUMBERS: dict[torch.dtype, type[ctypes.c_float] | type[ctypes.c_double]] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}


class Look:
    """Looks at one map, and corrects its fastest directions.

    It owns copies of the directions (`directions`) and overwrites them. `Look.at` says whether the
    kernel accepts these tensors.
    """

    def __init__(self, f: Map, directions: Directions) -> None:
        self._dtype, self._units = f.weight.dtype, len(f.scale)
        self._seen = native.seen([f.weight])
        rays, age, mean, left = (
            t.clone(memory_format=torch.contiguous_format) for t in _tensors(directions)
        )
        self.directions = Directions(rays, age, mean, left, directions.started)
        self._read = f.scale, *coefficients(f)  # kept, because the calls have their addresses only
        dtype, units, count = self._dtype, self._units, len(directions.age)
        weight = address(f.weight, dtype, units, units)
        shared = [address(t, dtype, units) for t in self._read]
        self._follow = FollowDirectionsCall(
            units, count, ITERATIONS, SETTLE, RIPE, MEMORY, True, f.inside, directions.started,
            weight, *shared, address(rays, dtype, count, units), address(age, dtype, count),
            address(mean, dtype, count),
            FIXED, alike(dtype), 0.0,
        )  # fmt: skip
        self._correct = CorrectDirectionCall(
            units, LEFT_ITERATIONS, f.inside, weight, *shared, address(rays, dtype, count, units),
            address(left, dtype, units), 0.0, FIXED, NORMAL,
        )  # fmt: skip
        self._fastest = _NUMBERS[dtype].from_address(mean.data_ptr())
        self._rate = _NUMBERS[dtype]()

    @staticmethod
    def at(f: Map, directions: Directions) -> Look | None:
        """A look at this map, where the kernel can have one."""
        tensors = f.weight, f.scale, *_tensors(directions)
        possible = (
            f.weight.dtype in native.C_TYPES
            and f.weight.is_contiguous()
            and native.accepts(*tensors)
        )
        return Look(f, directions) if possible else None

    def serves(self, weight: Tensor, rays: Tensor) -> bool:
        """Whether the matrix is read as it was, and these are still the directions."""
        return rays is self.directions.rays and native.seen([weight]) == self._seen

    def bound(self, cap: float) -> float:
        """The largest growth rate; corrects the matrix up to `LOOKS` times while above `cap`."""
        first = rate = self._followed(renewing=True)
        for look in range(1, LOOKS + 1):
            if not cap < rate < math.inf:
                break
            self._correct.share = 1 - cap / rate
            native.call("correct_direction", self._correct, self._dtype)
            self._fastest.value -= math.log(rate / cap)
            if look < LOOKS:
                rate = self._followed(renewing=False)
        return first

    def _followed(self, *, renewing: bool) -> float:
        self._follow.renewing = renewing
        native.call("follow_directions", self._follow, self._dtype)
        self.directions.started = self._follow.started
        self._rate.value = self._follow.rate  # rounded as in a tensor: both ways agree bit for bit
        rate: float = self._rate.value
        return rate


def _tensors(directions: Directions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return directions.rays, directions.age, directions.mean, directions.left

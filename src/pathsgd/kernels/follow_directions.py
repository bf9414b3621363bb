"""The growth of several directions under a recurrent map, followed from call to call."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import abi
from pathsgd.kernels.abi import INT, POINTER, REAL, address, fields
from pathsgd.kernels.fallback import follow_directions as fallback
from pathsgd.kernels.fallback.follow_directions import (
    ITERATIONS,
    MEMORY,
    RIPE,
    SETTLE,
    Directions,
    Map,
)


class FollowDirectionsCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "units count iterations settle ripe memory renewing inside started"),
        *fields(POINTER, "weight scale keep gain rays age mean"),
        ("rate", REAL),
    ]


def follow_directions(f: Map, directions: Directions, *, renewing: bool = False) -> Tensor:
    """Iterate every direction, order them by growth, and give the largest growth rate, 0-d; 0 if none is ripe.

    The rate of a direction is the lower of its growth in the last half of the iterations and of its mean over
    `MEMORY`. A direction that has ended at zero is started anew; `renewing`, so is the slowest of the ripe ones where
    half of all are ripe, so that every look is at a new one, too. `directions` gets new tensors.
    """
    dtype, units = f.weight.dtype, len(f.scale)
    kept = directions.rays, directions.age, directions.mean
    if dtype not in abi.C_TYPES or not abi.accepts(f.weight, f.scale, *kept):
        return fallback.follow_directions(f, directions, renewing=renewing)
    weight, count = f.weight.contiguous(), len(directions.age)
    rays, age, mean = (t.clone(memory_format=torch.contiguous_format) for t in kept)
    keep, gain = coefficients(f)
    arguments = FollowDirectionsCall(
        units, count, ITERATIONS, SETTLE, RIPE, MEMORY, renewing, f.inside, directions.started,
        address(weight, dtype, units, units), address(f.scale, dtype, units),
        address(keep, dtype, units), address(gain, dtype, units),
        address(rays, dtype, count, units), address(age, dtype, count), address(mean, dtype, count), 0.0,
    )  # fmt: skip
    abi.call("follow_directions", arguments, dtype)
    directions.rays, directions.age, directions.mean = rays, age, mean
    directions.started = arguments.started
    return torch.tensor(arguments.rate, dtype=dtype)


def coefficients(f: Map) -> tuple[Tensor | None, Tensor | None]:
    """keep and gain of each unit, (H,); None for those of a plain map, 0 and 1."""
    if isinstance(f.keep, float) and isinstance(f.gain, float) and (f.keep, f.gain) == (0.0, 1.0):
        return None, None
    keep, gain = (
        torch.as_tensor(c).to(f.scale).expand(f.scale.shape).contiguous() for c in (f.keep, f.gain)
    )
    return keep, gain

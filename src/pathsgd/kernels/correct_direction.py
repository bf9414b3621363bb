"""The growth of one direction under a recurrent map, taken down to a cap."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import abi
from pathsgd.kernels.abi import INT, POINTER, REAL, address, fields
from pathsgd.kernels.fallback import correct_direction as fallback
from pathsgd.kernels.fallback.correct_direction import CONDITION
from pathsgd.kernels.fallback.follow_directions import ITERATIONS, Map
from pathsgd.kernels.follow_directions import coefficients


class CorrectDirectionCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "units iterations inside"),
        *fields(POINTER, "weight scale keep gain ray left"),
        *fields(REAL, "share condition"),
    ]


def correct_direction(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    """Bring the rate of one direction down to `cap`, in place; nothing where it is not above. Returns its l.

    ray, start: (H,), the direction and where l starts from, in coordinates h / scale; rate: 0-d.
    """
    dtype, units = f.weight.dtype, len(f.scale)
    if (
        dtype not in abi.C_TYPES
        or not f.weight.is_contiguous()
        or not abi.accepts(f.weight, f.scale, ray, start, rate)
    ):
        return fallback.correct_direction(f, ray, start, rate, cap)
    found = float(rate)
    if not cap < found < math.inf:
        return start
    left = start.clone(memory_format=torch.contiguous_format)
    keep, gain = coefficients(f)
    arguments = CorrectDirectionCall(
        units, ITERATIONS, f.inside, address(f.weight, dtype, units, units), address(f.scale, dtype, units),
        address(keep, dtype, units), address(gain, dtype, units), address(ray.contiguous(), dtype, units),
        address(left, dtype, units), 1 - cap / found, CONDITION,
    )  # fmt: skip
    abi.call("correct_direction", arguments, dtype)
    return left

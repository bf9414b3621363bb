"""The growth of one direction under a recurrent map, taken down to a cap."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.follow_directions import ITERATIONS, Map, coefficients, positive
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

CONDITION = 30.0
"""Largest |l| |r| / (l . r) at which a left vector is used."""


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
        dtype not in native.C_TYPES
        or not f.weight.is_contiguous()
        or not native.accepts(f.weight, f.scale, ray, start, rate)
    ):
        return by_torch(f, ray, start, rate, cap)
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
    native.call("correct_direction", arguments, dtype)
    return left


def by_torch(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    """`correct_direction` in torch alone."""
    left = _left_vector(f, ray, start)
    above = (rate > cap) & rate.isfinite()
    factor = torch.where(above, (1 - cap / rate) / (left @ ray), 0.0)
    image = torch.where(above, f(ray[None])[0] / f.gain, 0.0) * f.scale
    f.weight.sub_(torch.outer(factor * image, left / f.scale))
    return torch.where(above, left, start)


def _left_vector(f: Map, ray: Tensor, start: Tensor) -> Tensor:
    """l of a direction, zero outside its support, with l . r > 0; r itself where there is none near enough."""
    support = ray > 0
    left = torch.where(support, start, 0.0)
    for _ in range(ITERATIONS):
        left = torch.where(support, f.back(left), 0.0)
        left = left / positive(left.norm())
    left = left * torch.where(left @ ray < 0, -1.0, 1.0)
    near = CONDITION * (left @ ray) >= left.norm() * ray.norm()
    return torch.where(near & (left @ ray > 0), left, ray)

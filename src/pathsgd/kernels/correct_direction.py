"""The smallest correction of one direction of a recurrent map (equations: arithmetic/growth.py)."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.follow_directions import (
    FIXED,
    ITERATIONS,
    Map,
    coefficients,
    positive,
    turned,
)
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

NORMAL = 0.01
"""Smallest cos(l, F(r)) at which a left vector is used."""
LEFT_ITERATIONS = 2 * ITERATIONS
LOOKS = 4
"""Looks in one call, at most, while there is something to correct."""


class CorrectDirectionCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "units iterations inside"),
        *fields(POINTER, "weight scale keep gain ray left"),
        *fields(REAL, "share fixed normal"),
    ]


def correct_direction(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    """Lower the rate of one direction to `cap`, to first order and in place, if it is above.

    Returns l, or `start` where the direction is not fixed.

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
        units, LEFT_ITERATIONS, f.inside, address(f.weight, dtype, units, units),
        address(f.scale, dtype, units), address(keep, dtype, units), address(gain, dtype, units),
        address(ray.contiguous(), dtype, units),
        address(left, dtype, units), 1 - cap / found, FIXED, NORMAL,
    )  # fmt: skip
    native.call("correct_direction", arguments, dtype)
    return left


def by_torch(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    """`correct_direction` in torch alone."""
    image = f(ray[None])[0]
    active = f.active(ray)
    left = _left_vector(f, ray, start, image, active)
    above = (rate > cap) & rate.isfinite()
    is_normal = left @ image > NORMAL * left.norm() * image.norm()
    is_fixed = above & (turned(image, ray) < FIXED) & is_normal
    along = torch.where(is_fixed, left, image)
    rows = torch.where(above, active * along, 0.0)
    size = (1 - cap / rate) * (along @ image) / ((rows @ rows) * (ray @ ray))
    size = torch.where(size.isfinite(), size, 0.0)  # not where no entry of W acts on the ray
    f.weight.sub_(torch.outer(size * rows * f.scale, ray / f.scale))
    return torch.where(is_fixed, left, start)


def _left_vector(f: Map, ray: Tensor, start: Tensor, image: Tensor, active: Tensor) -> Tensor:
    """l of a direction, zero outside its support, with l . F(r) >= 0."""
    support = ray > 0
    left = torch.where(support, start, 0.0)
    for _ in range(LEFT_ITERATIONS):
        left = torch.where(support, f.back(left, active), 0.0)
        left = left / positive(left.norm())
    return left * torch.where(left @ image < 0, -1.0, 1.0)

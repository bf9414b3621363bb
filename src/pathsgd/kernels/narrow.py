"""Float64 numbers in float32, counted in another unit."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class NarrowCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count"),
        *fields(POINTER, "x to"),
        *fields(REAL, "factor largest least"),
    ]


def narrow(x: Tensor, factor: float | None = None) -> tuple[Tensor, float, float, float]:
    """factor * x in float32, the factor, the largest entry of x, and its least above zero.

    The last is infinity where all are zero.

    x: float64, not negative.
    factor: None for the power of two that takes the largest entry into [1/2, 1).
    """
    x = x.detach().contiguous()
    if x.dtype is not torch.float64 or factor == 0 or not native.accepts(x):
        return by_torch(x, factor)
    to = torch.empty(x.shape, dtype=torch.float32)
    places = address(x, torch.float64, *x.shape), address(to, torch.float32, *x.shape)
    arguments = NarrowCall(x.numel(), *places, factor or 0.0)
    native.call("narrow", arguments, torch.float32)
    return to, arguments.factor, arguments.largest, arguments.least


def by_torch(x: Tensor, factor: float | None) -> tuple[Tensor, float, float, float]:
    """`narrow` in torch alone."""
    largest, least = 0.0, math.inf
    if x.numel():
        largest, least = max(0.0, float(x.amax())), float(torch.where(x > 0, x, math.inf).amin())
    if factor is None:
        exponent = min(max(math.frexp(largest)[1], -1000), 1000)
        factor = 2.0**-exponent if 0 < largest < math.inf else 1.0
    return (x * factor).float(), factor, largest, least

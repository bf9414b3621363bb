"""Float64 numbers in float32, counted in another unit."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.fallback import narrow as fallback
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class NarrowCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count"),
        *fields(POINTER, "x to"),
        *fields(REAL, "factor largest least"),
    ]


def narrow(x: Tensor, factor: float | None = None) -> tuple[Tensor, float, float, float]:
    """factor * x in float32, the factor, the largest entry of x, and its least above zero (infinity if all are zero).

    x: float64, not negative.
    factor: None for the power of two that takes the largest entry into [1/2, 1).
    """
    x = x.detach().contiguous()
    if x.dtype is not torch.float64 or factor == 0 or not native.accepts(x):
        return fallback.narrow(x, factor)
    to = torch.empty(x.shape, dtype=torch.float32)
    places = address(x, torch.float64, *x.shape), address(to, torch.float32, *x.shape)
    arguments = NarrowCall(x.numel(), *places, factor or 0.0)
    native.call("narrow", arguments, torch.float32)
    return to, arguments.factor, arguments.largest, arguments.least

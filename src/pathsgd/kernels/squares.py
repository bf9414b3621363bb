"""A tensor squared elementwise, and the range of its squares."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class SquaresCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "count threads"),
        *fields(POINTER, "w q"),
        *fields(REAL, "largest least"),
    ]


def squares(weight: Tensor) -> tuple[Tensor, float, float]:
    """w^2 in w's dtype, its largest entry, and the least square of an entry that is not zero.

    The last is infinity where all are zero.

    A square that vanishes although its w does not makes the last one (next to) zero.
    """
    weight = weight.detach().contiguous()
    if weight.dtype not in native.C_TYPES or not native.accepts(weight):
        return by_torch(weight)
    squared = torch.empty_like(weight)
    arguments = SquaresCall(
        *(weight.numel(), native.thread_count()),
        address(weight, weight.dtype, *weight.shape),
        address(squared, weight.dtype, *weight.shape),
    )
    native.call("squares", arguments, weight.dtype)
    return squared, arguments.largest, arguments.least


def by_torch(weight: Tensor) -> tuple[Tensor, float, float]:
    """`squares` in torch alone."""
    squared = weight.square()
    if not weight.numel():
        return squared, 0.0, math.inf
    return squared, float(squared.amax()), float(torch.where(weight != 0, squared, math.inf).amin())

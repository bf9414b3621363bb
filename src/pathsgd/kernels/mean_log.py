"""The mean of logarithms."""

from __future__ import annotations

import ctypes

from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class MeanLogCall(ctypes.Structure):
    _fields_ = [*fields(INT, "count threads"), *fields(POINTER, "x"), *fields(REAL, "mean")]


def mean_log(values: Tensor) -> float:
    """The mean of the logarithms of numbers, in float64.

    -inf where one is zero, NaN where one is negative.
    """
    values = values.detach()
    if (
        values.dtype not in native.C_TYPES
        or not native.accepts(values)
        or not values.is_contiguous()
    ):
        return by_torch(values)
    arguments = MeanLogCall(
        values.numel(), native.thread_count(), address(values, values.dtype, *values.shape)
    )
    native.call("mean_log", arguments, values.dtype)
    return arguments.mean


def by_torch(values: Tensor) -> float:
    """`mean_log` in torch alone."""
    return float(values.double().log().mean())

"""The inverse square root of kappa, scaled: what a gradient is multiplied by."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd._native import abi, loader
from pathsgd._native.abi import INT, POINTER, REAL, address, fields
from pathsgd._native.fallback import inverse_root as fallback

_KINDS = ((torch.float32, torch.float32), (torch.float64, torch.float32), (torch.float64, torch.float64))


class InverseRootCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rows columns threads"),
        *fields(POINTER, "kappa row_factors column_factors"),
        ("scale", REAL),
        ("to", POINTER),
    ]


def inverse_root(
    kappa: Tensor,
    rows: Tensor | None,
    columns: Tensor | None,
    scale: float,
    dtype: torch.dtype,
    to: Tensor | None = None,
) -> Tensor:
    """min(largest, sqrt(scale) r_i c_j / sqrt(kappa_ij)) in `dtype`, 0 where kappa is 0.

    kappa: (n, m); rows r (n,), columns c (m,): float64, or None for ones; to: where to write it, if it has that shape
    and dtype.
    """
    if (kappa.dtype, dtype) not in _KINDS or not abi.accepts(kappa, rows, columns):
        return fallback.inverse_root(kappa, rows, columns, scale, dtype)
    n, m = kappa.shape
    kappa, rows, columns = kappa.contiguous(), _dense(rows), _dense(columns)
    if to is None or to.shape != (n, m) or to.dtype != dtype or not to.is_contiguous() or not abi.accepts(to):
        to = kappa.new_empty(n, m, dtype=dtype)
    arguments = InverseRootCall(
        *(n, m, loader.thread_count()),
        address(kappa, kappa.dtype, n, m),
        address(rows, torch.float64, n),
        address(columns, torch.float64, m),
        scale,
        address(to, dtype, n, m),
    )
    abi.call("inverse_root", arguments, kappa.dtype, dtype)
    return to


def _dense(factors: Tensor | None) -> Tensor | None:
    return None if factors is None else factors.contiguous()

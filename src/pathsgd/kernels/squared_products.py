"""Products with a matrix squared elementwise."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, address, fields


class SquaredProductsCall(ctypes.Structure):
    _fields_ = [*fields(INT, "rows columns threads"), *fields(POINTER, "w x y into out")]


def squared_products(
    weight: Tensor,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    into: bool = True,
    out: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """W^2 x (n,) and (W^2)^T y (m,) in float64, W (n, m) squared elementwise.

    x, y: float64, None for ones.

    into, out: whether the first and the second are wanted.
    """
    weight = weight.detach()
    if weight.dtype not in native.C_TYPES or not native.accepts(weight, x, y):
        return by_torch(weight, x, y, into=into, out=out)
    weight, (rows, columns) = weight.contiguous(), weight.shape
    by_x = torch.empty(rows, dtype=torch.float64) if into else None
    by_y = torch.empty(columns, dtype=torch.float64) if out else None
    arguments = SquaredProductsCall(
        *(rows, columns, native.thread_count()),
        address(weight, weight.dtype, rows, columns),
        address(x, torch.float64, columns),
        address(y, torch.float64, rows),
        address(by_x, torch.float64, rows),
        address(by_y, torch.float64, columns),
    )
    native.call("squared_products", arguments, weight.dtype)
    return by_x, by_y


def by_torch(
    weight: Tensor, x: Tensor | None, y: Tensor | None, *, into: bool, out: bool
) -> tuple[Tensor | None, Tensor | None]:
    """`squared_products` in torch alone."""
    squared = weight.to(torch.float64).square()
    by_x = None if not into else squared.sum(1) if x is None else squared @ x
    return by_x, None if not out else squared.sum(0) if y is None else y @ squared

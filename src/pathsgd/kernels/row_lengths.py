"""Squared lengths of rows in a metric."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, address, fields


class RowLengthsCall(ctypes.Structure):
    _fields_ = [*fields(INT, "rows columns threads"), *fields(POINTER, "p w squares")]


def row_lengths(p: Tensor, whitening: Tensor) -> Tensor:
    """Sum of (p / whitening)^2 over the entries of each row, float64 (n,).

    Entries with whitening 0 are left out.

    p: (n, ...). whitening: broadcastable to its shape.
    """
    p = p.detach()
    is_plain = (
        p.dtype in native.C_TYPES and whitening.dtype is p.dtype and whitening.shape == p.shape
    )
    if (
        not is_plain
        or not native.accepts(p, whitening)
        or not (p.is_contiguous() and whitening.is_contiguous())
    ):
        return by_torch(p, whitening)
    squares = torch.empty(len(p), dtype=torch.float64)
    arguments = RowLengthsCall(
        *(len(p), math.prod(p.shape[1:]), native.thread_count()),
        address(p, p.dtype, *p.shape),
        address(whitening, p.dtype, *p.shape),
        address(squares, torch.float64, len(p)),
    )
    native.call("row_lengths", arguments, p.dtype)
    return squares


def by_torch(p: Tensor, whitening: Tensor) -> Tensor:
    """`row_lengths` in torch alone."""
    shares = (p / whitening).masked_fill_(whitening == 0, 0.0)
    lengths = (
        shares.double()
        if p.dim() == 1
        else torch.linalg.vector_norm(shares.flatten(1), dim=1, dtype=torch.float64)
    )
    return lengths.square()

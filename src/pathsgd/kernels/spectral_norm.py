"""Largest singular value of a matrix, from a vector that is nearly its own."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class SpectralNormCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rows columns iterations"),
        *fields(POINTER, "matrix vector"),
        ("length", REAL),
    ]


def spectral_norm(matrix: Tensor, start: Tensor, iterations: int = 2) -> tuple[float, Tensor]:
    """Largest singular value of an (n, m) matrix, and where to start next time, (m,).

    By power iteration from `start` (m,).

    A few iterations suffice from step to step: the dominant direction of successive updates changes
    slowly, and what is missed in one step is found in the next.
    """
    dtype = matrix.dtype
    if dtype not in native.C_TYPES or start.dtype != dtype or not native.accepts(matrix, start):
        return by_torch(matrix, start, iterations)
    (rows, columns), matrix = matrix.shape, matrix.contiguous()
    vector = start.clone(memory_format=torch.contiguous_format)
    addresses = address(matrix, dtype, rows, columns), address(vector, dtype, columns)
    arguments = SpectralNormCall(rows, columns, iterations, *addresses, 0.0)
    native.call("spectral_norm", arguments, dtype)
    return arguments.length, vector if 0 < arguments.length < math.inf else start


def by_torch(matrix: Tensor, start: Tensor, iterations: int) -> tuple[float, Tensor]:
    """`spectral_norm` in torch alone."""
    largest = torch.linalg.vector_norm(matrix, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return size, start
    unit, v = (
        matrix / largest,
        start,
    )  # entries up to 1, and v of length 1: in the range of any dtype
    for _ in range(iterations):
        v = torch.mv(unit.t(), torch.mv(unit, v))
        v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    return size * float(torch.linalg.vector_norm(torch.mv(unit, v))), v

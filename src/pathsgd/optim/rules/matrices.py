"""What a parameter is to a rule for matrices: rows that enter units, columns that leave them, taps.

shape                  rows     taps            columns
linear, recurrent      out      1               in
convolution            out      height * width  in          a basis for each end's channels
the same, flat         out      1               in * height * width
vector                 n        1               1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Matrix:
    """A parameter's shape, and the same entries as rows x taps x columns."""

    shape: torch.Size
    rows: int
    taps: int
    columns: int

    def of(self, u: Tensor) -> Tensor:
        """A tensor of the parameter's shape as (rows, taps, columns), dense; a view if no taps."""
        if self.taps == 1:
            return u.reshape(self.rows, self.columns)
        return u.reshape(self.rows, self.columns, self.taps).mT.contiguous()

    def back(self, x: Tensor) -> Tensor:
        """The inverse of `of`."""
        return (x if self.taps == 1 else x.mT).reshape(self.shape)


def matrix_of(shape: torch.Size, *, flat: bool = False) -> Matrix:
    """How a rule sees a parameter. flat: the taps of a kernel count as columns."""
    if len(shape) < 2:
        return Matrix(shape, math.prod(shape), 1, 1)
    rows, columns, taps = shape[0], shape[1], math.prod(shape[2:])
    return Matrix(shape, rows, 1, columns * taps) if flat else Matrix(shape, rows, taps, columns)

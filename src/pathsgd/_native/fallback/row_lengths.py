"""Squared lengths of rows in a metric."""

from __future__ import annotations

import torch
from torch import Tensor


def row_lengths(p: Tensor, whitening: Tensor) -> Tensor:
    lengths = torch.where(whitening != 0, p / whitening, 0.0).square()
    lengths = lengths.double()
    return lengths.flatten(1).sum(1) if lengths.dim() > 1 else lengths

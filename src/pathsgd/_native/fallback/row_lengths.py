"""Squared lengths of rows in a metric."""

from __future__ import annotations

import torch
from torch import Tensor


def row_lengths(p: Tensor, whitening: Tensor) -> Tensor:
    lengths = torch.where(whitening != 0, p / whitening, 0.0).square()
    return lengths.double().reshape(len(p), -1).sum(1)

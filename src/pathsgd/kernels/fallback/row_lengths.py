"""Squared lengths of rows in a metric."""

from __future__ import annotations

import torch
from torch import Tensor


def row_lengths(p: Tensor, whitening: Tensor) -> Tensor:
    shares = (p / whitening).masked_fill_(whitening == 0, 0.0)
    lengths = (
        shares.double()
        if p.dim() == 1
        else torch.linalg.vector_norm(shares.flatten(1), dim=1, dtype=torch.float64)
    )
    return lengths.square()

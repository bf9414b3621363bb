"""The inverse square root of kappa in float64, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_root(
    kappa: Tensor, rows: Tensor | None, columns: Tensor | None, scale: float, dtype: torch.dtype
) -> Tensor:
    inverse = torch.where(kappa > 0, (scale / kappa.double()).sqrt(), 0.0)
    for side in (None if rows is None else rows[:, None], columns):
        inverse = inverse if side is None else inverse * side
    return inverse.clamp(max=torch.finfo(dtype).max).to(dtype)

"""Products with a matrix squared elementwise, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_products(
    weight: Tensor, x: Tensor | None, y: Tensor | None, *, into: bool, out: bool
) -> tuple[Tensor | None, Tensor | None]:
    squared = weight.to(torch.float64).square()
    by_x = None if not into else squared.sum(1) if x is None else squared @ x
    return by_x, None if not out else squared.sum(0) if y is None else y @ squared

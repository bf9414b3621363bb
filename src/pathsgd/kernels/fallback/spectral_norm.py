"""Power iteration in the range of any dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spectral_norm(matrix: Tensor, start: Tensor, iterations: int) -> tuple[float, Tensor]:
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

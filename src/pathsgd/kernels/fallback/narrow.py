"""Float64 numbers in float32, counted in another unit."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def narrow(x: Tensor, factor: float | None) -> tuple[Tensor, float, float, float]:
    largest, least = 0.0, math.inf
    if x.numel():
        largest, least = max(0.0, float(x.amax())), float(torch.where(x > 0, x, math.inf).amin())
    if factor is None:
        exponent = min(max(math.frexp(largest)[1], -1000), 1000)
        factor = 2.0**-exponent if 0 < largest < math.inf else 1.0
    return (x * factor).float(), factor, largest, least

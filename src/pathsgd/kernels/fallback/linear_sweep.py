"""One sweep through a linear recurrence, a product at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_sweep(
    A: Tensor, u: Tensor, start: Tensor | None, ratios: Tensor | None, *, backwards: bool
) -> Tensor:
    m = torch.empty_like(u)
    before, At = start, A.t()
    factors = [1.0] * len(u) if ratios is None else ratios.cpu().tolist()
    order = reversed(range(len(u))) if backwards else range(len(u))
    for t in order:
        before = (
            m[t].copy_(u[t])
            if before is None
            else torch.addmm(u[t], before, At, alpha=factors[t], out=m[t])
        )
    return m

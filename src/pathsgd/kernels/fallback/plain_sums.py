"""The sums of a plain net's squared network, from its sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathsgd.kernels.fallback.squared_products import squared_products
from pathsgd.kernels.fallback.squared_sequences import squared_sequences


def plain_sums(
    w_in: Tensor,
    e: Tensor | None,
    w_rec: Tensor,
    biases: Sequence[Tensor],
    w_out: Tensor,
    b_out: Tensor | None,
    steps: int,
    every_step: bool,
    decay: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, float, float, float, float]:
    """h, delta, vectors, recurrent, gamma_sq, growth, largest, least."""
    u, _ = squared_products(w_in, e, None, into=True, out=False)
    _, v = squared_products(w_out, None, None, into=False, out=True)
    assert u is not None and v is not None
    for bias in biases:
        u = u + bias.double().square()
    h, delta = squared_sequences(w_rec, u.to(dtype), v.to(dtype), steps, every_step, decay)
    # What is left of h_s is decay^(T-s) times its row, of delta_s decay^(s-1) times its row.
    fade = decay ** torch.arange(steps, dtype=torch.float64, device=u.device)
    out = fade.flip(0) @ h.double() if every_step else h[-1].double()
    vectors = torch.stack(
        [fade @ delta.double(), out, torch.linalg.vecdot(h, delta, dim=0).double()]
    )
    recurrent = delta[1:].t() @ h[:-1]
    largest = (
        max(float(h.amax()), float(delta.amax())) if bool(vectors.isfinite().all()) else math.inf
    )
    least = min(
        float(result.amin()) for result in (vectors[:2], *([recurrent] if steps > 1 else []))
    )
    gamma_sq = float(v @ out)
    if b_out is not None:
        gamma_sq += float(b_out.double().square().sum() * (fade[-1] * (steps if every_step else 1)))
    growth = float((v @ h[-1].double()) / (v @ h[-2].double())) if steps > 1 else 0.0
    share = 1 / gamma_sq if gamma_sq > 0 else 1.0
    # In float64: gamma^2 may leave the range of `dtype` where the quotient does not.
    recurrent = (recurrent.double() * (share * decay)).to(dtype)
    return h, delta, vectors * share, recurrent, gamma_sq, growth, largest, least

"""What kappa1 of a plain recurrent net is made of.

Sums over the sequences of its squared network.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields
from pathsgd.kernels.squared_products import by_torch as squared_products_by_torch
from pathsgd.kernels.squared_sequences import KINDS
from pathsgd.kernels.squared_sequences import by_torch as squared_sequences_by_torch


class PlainSumsCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "steps hidden inputs outputs every_step threads"),
        *fields(POINTER, "w_in b_in b_rec w_rec w_out b_out e h delta into out flow recurrent"),
        *fields(REAL, "decay output_rows gamma_sq growth largest least"),
    ]


class PlainSums(NamedTuple):
    """Sequences h, delta (T, H) of the squared network of a plain net, and their sums.

    Rows are s = 0 .. T-1; the sums are divided by gamma^2.

    Everything is scaled by powers of decay = 1 / root as in `squared_sequences`, the sums and
    gamma^2 by decay^(T-1). Where gamma^2 is zero, so are the sums.
    """

    h: Tensor
    delta: Tensor
    vectors: Tensor
    """(3, H) float64: sum decay^s delta_s, into the units; sum decay^(T-1-s) h_s over steps with
    outputs, out of them; sum h_s .* delta_s, the flow through them"""
    recurrent: Tensor
    """sum delta_{s+1} h_s^T * decay, (H, H)"""
    gamma_sq: float
    growth: float
    """What an output collects of h in the last step over that in the step before; 0 if there is
    only one."""
    largest: float
    """Largest entry of h and delta; infinite where anything is not finite."""
    least: float
    """Smallest entry of vectors[:2] and, for T > 1, of `recurrent`, before the division by
    gamma^2."""


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
) -> PlainSums:
    """The sums, computed in `dtype`, scaled by powers of `decay`.

    w_in (H, I), w_rec (H, H), w_out (O, H), biases up to two of (H,), b_out (O,) or None; e: (I,)
    float64, what each input carries, None for ones.
    """
    kind, weights = w_rec.dtype, (w_in, w_rec, w_out, *biases, *([] if b_out is None else [b_out]))
    if (
        (kind, dtype) not in KINDS
        or not native.accepts(*weights, e)
        or not all(w.dtype is kind and w.is_contiguous() for w in weights)
    ):
        return PlainSums(
            *by_torch(w_in, e, w_rec, biases, w_out, b_out, steps, every_step, decay, dtype)
        )
    hidden, inputs, outputs = w_rec.shape[0], w_in.shape[1], w_out.shape[0]
    b_in, b_rec = (*biases, None, None)[:2]
    h, delta = torch.empty(steps, hidden, dtype=dtype), torch.empty(steps, hidden, dtype=dtype)
    vectors = torch.empty(3, hidden, dtype=torch.float64)
    recurrent = torch.empty(hidden, hidden, dtype=dtype)
    last = decay ** (steps - 1)
    arguments = PlainSumsCall(
        *(steps, hidden, inputs, outputs, every_step, native.thread_count()),
        address(w_in, kind, hidden, inputs),
        *(address(b, kind, hidden) for b in (b_in, b_rec)),
        address(w_rec, kind, hidden, hidden),
        address(w_out, kind, outputs, hidden),
        address(b_out, kind, outputs),
        address(e, torch.float64, inputs),
        *(address(t, dtype, steps, hidden) for t in (h, delta)),
        *(address(vectors, torch.float64, 3, hidden, offset=i * hidden) for i in range(3)),
        address(recurrent, dtype, hidden, hidden),
        *(decay, steps * last if every_step else last),
    )
    native.call("plain_sums", arguments, kind, dtype)
    a = arguments
    return PlainSums(h, delta, vectors, recurrent, a.gamma_sq, a.growth, a.largest, a.least)


def by_torch(
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
    u, _ = squared_products_by_torch(w_in, e, None, into=True, out=False)
    _, v = squared_products_by_torch(w_out, None, None, into=False, out=True)
    assert u is not None and v is not None
    for bias in biases:
        u = u + bias.double().square()
    h, delta = squared_sequences_by_torch(w_rec, u.to(dtype), v.to(dtype), steps, every_step, decay)
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

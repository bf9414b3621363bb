"""Linear recurrences with nonnegative coefficients: the numerical heart of the path quantities of an RNN.

    h_t = A h_{t-1} + u_t          A = W_rec squared elementwise, u_t = what enters from below

Glossary: t = 1..T time, H units, B rows (examples; nearly always 1). Arrays are time first: h[t-1] is h_t, (T, B, H).
delta_t = dg/dh_t, the path mass from unit to outputs.

Range. h_t grows like rho(A)^t: e^(sigma t) is taken out, sigma = log rho(A) or the growth rate of u, whichever is
larger. h_s and delta_{s+1} carry opposite powers, so every product of the two is of the order of gamma^2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pathsgd.scaled import Scaled


def growth_rate(A: Tensor, iterations: int = 16) -> float:
    """log of the Perron root of a nonnegative matrix, by power iteration; -inf for a nilpotent one."""
    x = A.new_ones(A.shape[0])
    rate = -math.inf
    for _ in range(iterations):
        y = A @ x
        total = float(y.sum())
        if total == 0 or not math.isfinite(total):
            return -math.inf if total == 0 else math.log(float(A.sum(1).max()))
        rate = math.log(total / float(x.sum()))
        x = y / total
    return rate


class _LinearRecurrence(torch.autograd.Function):
    """h_t = A h_{t-1} + u_t from h_0, forward and adjoint each as one sweep over time."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, u: Tensor, h0: Tensor) -> Tensor:
        h = torch.empty_like(u)
        previous, At = h0, A.t()
        for u_t, h_t in zip(u.unbind(0), h.unbind(0)):
            previous = torch.addmm(u_t, previous, At, out=h_t)
        ctx.save_for_backward(A, h, h0)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        A, h, h0 = ctx.saved_tensors
        delta = adjoint_states(A, grads[0])
        before = torch.cat([h0[None], h[:-1]])
        return torch.einsum("tbj,tbk->jk", delta, before), delta, delta[0] @ A


def adjoint_states(A: Tensor, external: Tensor) -> Tensor:
    """delta_t = A^T delta_{t+1} + external_t, (T, B, H)."""
    zero = torch.zeros_like(external[0])
    return _LinearRecurrence.apply(A.t(), external.flip(0).contiguous(), zero).flip(0)


def _unrolled(A: Tensor, u: Tensor, h0: Tensor) -> Tensor:
    """The same recurrence from ordinary operations: differentiable as often as one likes."""
    states, previous = [], h0
    for u_t in u.unbind(0):
        previous = previous @ A.t() + u_t
        states.append(previous)
    return torch.stack(states)


def states(A: Scaled, u: Scaled, h0: Scaled | None, *, unroll: bool = False) -> tuple[Scaled, float]:
    """All states h_1..h_T of the recurrence, one scale per step, and the rate sigma that was taken out.

    A: (H, H), u: (T, B, H), h0: (B, H) or None for zero. Scale of step t: sigma * t + constant.
    """
    steps = u.shape[0]
    u = u if u.uniform else u.merged((1, 2))
    u_scale = u.log_scale.reshape(-1).expand(steps)
    time = torch.arange(1, steps + 1, dtype=u.mantissa.dtype, device=u.mantissa.device)
    sigma = max(
        growth_rate(A.mantissa.detach()) + float(A.log_scale), float(u_scale[-1] - u_scale[0]) / max(1, steps - 1)
    )
    offsets = [float((u_scale - sigma * time).max())]
    if h0 is not None:
        h0 = h0.with_one_scale()
        offsets.append(float(h0.log_scale))
    offset = max(offsets)
    scale = sigma * time + offset
    recurrence = _unrolled if unroll else _LinearRecurrence.apply
    start = torch.zeros_like(u.mantissa[0]) if h0 is None else h0.rescaled_to(u.mantissa.new_tensor(offset)).mantissa
    h = recurrence(
        A.mantissa * torch.exp(A.log_scale - sigma),
        u.mantissa * torch.exp(u_scale - scale)[:, None, None],
        start,
    )
    return Scaled(h, scale[:, None, None]), sigma


def second_order_sum(A: Tensor, before: Tensor, delta: Tensor) -> Tensor:
    """sum_{n>=0} (A^n)^T .* sum_s delta_{s+n+2} h_s^T, the sum inside kappa2 of a recurrent matrix.

    before[t] = h_t (t = 0..T-1), delta[t] = delta_{t+1}; both (T, H) and scaled so that opposite powers cancel.
    Costs T products of H x H and T outer sums: the straightforward form, exact for every matrix.
    """
    steps = before.shape[0]
    total, power = torch.zeros_like(A), torch.eye(A.shape[0], dtype=A.dtype, device=A.device)
    for n in range(steps - 1):
        # h_s with s = t, delta_{s+n+2} = delta[s+n+1]
        total.addcmul_(power.t(), delta[n + 1 :].t() @ before[: steps - n - 1])
        power = power @ A
    return total

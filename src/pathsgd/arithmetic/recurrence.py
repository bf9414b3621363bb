"""Linear recurrences with nonnegative coefficients: path sums of recurrent layers.

    h_t = A h_{t-1} + u_t          A = W_rec squared elementwise, u_t = what enters from below

Glossary: t = 1..T time, H units, B rows (examples; nearly always 1). Arrays are time first: h[t-1]
is h_t, (T, B, H). delta_t = dg/dh_t, the path mass from a unit to the outputs.

Range. h_t may grow or shrink by hundreds of orders of magnitude. Every step carries a log-scale s_t
beside its mantissa m_t, h_t = m_t exp(s_t), and the recurrence runs in mantissas alone:

    m_t = r_t A m_{t-1} + u_t exp(-s_t)        r_t = exp(s_{t-1} - s_t)

h_t and delta_t carry opposite powers, so every product of the two is of the order of gamma^2 and
nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled, no_scale, postpone
from pathsgd.kernels.linear_sweep import linear_sweep

# Mantissas between these bounds multiply with one another and with weights inside float64's range.
_SMALL, _LARGE = 1e-140, 1e140


@dataclass(frozen=True)
class States:
    """All states of one pass.

    Mantissas (T, B, H), their log-scales s_t (T,), ratios r_t (T,), and m_0 (B, H).

    Where nothing was scaled, because looking was postponed, the log-scale is one 0 for all, and
    there are no ratios.
    """

    mantissa: Tensor
    log_scale: Tensor
    ratios: Tensor | None
    start: Tensor

    def as_scaled(self) -> Scaled:
        scale = self.log_scale
        return Scaled(self.mantissa, scale if scale.dim() == 0 else scale[:, None, None])


class _LinearRecurrence(torch.autograd.Function):
    """m_t = r_t A m_{t-1} + u_t from m_0; forward and adjoint are one sweep over time each.

    ratios: None if all are 1.

    backwards: m_t = r_t A m_{t+1} + u_t, and m_0 is what follows the last step.
    """

    @staticmethod
    def forward(
        ctx: Any, A: Tensor, u: Tensor, start: Tensor, ratios: Tensor | None, backwards: bool
    ) -> Tensor:
        m = linear_sweep(A, u, start, ratios, backwards=backwards)
        ctx.save_for_backward(A, m, start, ratios)
        ctx.backwards = backwards
        return m

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        A, m, start, ratios = ctx.saved_tensors
        delta = adjoint_states(A, grads[0], ratios, backwards=ctx.backwards)
        before = torch.cat([m[1:], start[None]] if ctx.backwards else [start[None], m[:-1]])
        first = -1 if ctx.backwards else 0
        into_start = delta[first] @ A
        if ratios is not None:
            before, into_start = before * ratios[:, None, None], ratios[first] * into_start
        return delta.flatten(0, 1).t() @ before.flatten(0, 1), delta, into_start, None, None


def adjoint_states(
    A: Tensor, external: Tensor, ratios: Tensor | None, *, backwards: bool = False
) -> Tensor:
    """delta_t = r_{t+1} A^T delta_{t+1} + external_t, (T, B, H): the recurrence backwards."""
    shifted = None
    if ratios is not None:
        none = ratios.new_zeros(1)
        shifted = torch.cat([none, ratios[:-1]] if backwards else [ratios[1:], none])
    delta = _LinearRecurrence.apply(
        A.t(), external, torch.zeros_like(external[0]), shifted, not backwards
    )
    if ratios is None:
        return delta
    return (
        delta
        if bool(delta.detach().isfinite().all())
        else _bounded_adjoint(A, external, ratios, backwards)
    )


def _bounded_adjoint(A: Tensor, external: Tensor, ratios: Tensor, backwards: bool) -> Tensor:
    """The adjoint cut off at a huge value instead of infinity.

    A unit that nothing reaches does not enter the scales, so its delta may leave float64's range.
    Its mass is zero all the same, and infinity times that zero would spoil every sum it enters.
    """
    delta, later, r_later = torch.empty_like(external), torch.zeros_like(external[0]), 0.0
    for t in range(len(external)) if backwards else reversed(range(len(external))):
        later = (r_later * later @ A + external[t]).clamp(max=_LARGE)
        delta[t], r_later = later, float(ratios[t])
    return delta


def _swept(A: Tensor, u: Tensor, start: Tensor, ratios: Tensor | None) -> Tensor:
    return _LinearRecurrence.apply(A, u, start, ratios, False)  # type: ignore[no-any-return]


def _unrolled(A: Tensor, u: Tensor, start: Tensor, ratios: Tensor | None) -> Tensor:
    """The recurrence from ordinary operations, which torch can differentiate in batches."""
    states, previous = [], start
    for u_t, r_t in zip(u.unbind(0), [1.0] * len(u) if ratios is None else ratios.cpu().tolist()):
        previous = r_t * previous @ A.t() + u_t
        states.append(previous)
    return torch.stack(states)


def states(A: Scaled, u: Scaled, h0: Scaled | None, *, unroll: bool = False) -> States:
    """All states h_1..h_T. A: (H, H), u: (T, B, H), h0: (B, H) or None for zero."""
    if postpone():
        return _unscaled(A, u, h0, unroll)
    u = u.merged((1, 2))
    u_scale = u.log_scale.to(u.mantissa.device).reshape(-1).expand(u.shape[0])
    start = (
        Scaled(torch.zeros_like(u.mantissa[0]), u_scale[0] * 0)
        if h0 is None
        else h0.with_one_scale()
    )
    scales = _straight_scales(A, u, u_scale, start)
    result = _states(A, u, u_scale, start, scales, unroll)
    if not _in_range(result.mantissa.detach()):
        result = _states(A, u, u_scale, start, _measured_scales(A, u, u_scale, start), unroll)
    return result


def _unscaled(A: Scaled, u: Scaled, h0: Scaled | None, unroll: bool) -> States:
    """The sweep without scales; the caller checks the range afterwards."""
    m_0 = torch.zeros_like(u.mantissa[0]) if h0 is None else h0.mantissa
    m = (_unrolled if unroll else _swept)(A.mantissa, u.mantissa, m_0, None)
    postpone(m.detach().amax())
    return States(m, no_scale(), None, m_0.detach())


def _states(
    A: Scaled, u: Scaled, u_scale: Tensor, start: Scaled, scales: Tensor, unroll: bool
) -> States:
    """The sweep with given scales s_0..s_T."""
    sweep = _unrolled if unroll else _swept
    # A's own scale goes with the ratios, so that its mantissa stays the leaf that kappa
    # differentiates.
    ratios = (A.log_scale + scales[:-1] - scales[1:]).exp()
    m_0 = start.rescaled_to(scales[0]).mantissa
    m = sweep(A.mantissa, u.mantissa * torch.exp(u_scale - scales[1:])[:, None, None], m_0, ratios)
    return States(m, scales[1:], ratios, m_0.detach())


def _in_range(mantissa: Tensor) -> bool:
    tops = mantissa.amax((1, 2))
    return bool(((tops > _SMALL) & (tops < _LARGE)).all()) or not bool(tops.any())


def _straight_scales(A: Scaled, u: Scaled, u_scale: Tensor, start: Scaled) -> Tensor:
    """s_t = sigma t + constant, sigma the growth rate of A or of u; right for nearly all nets."""
    steps = len(u_scale)
    first = (u.mantissa.detach().amax((0, 1)) + start.mantissa.detach().amax(0) > 0).to(
        u.mantissa.dtype
    )
    sigma = max(
        log_growth(A.mantissa.detach(), first) + float(A.log_scale),
        float(u_scale[-1] - u_scale[0]) / max(1, steps - 1),
    )
    sigma = sigma if math.isfinite(sigma) else 0.0
    time = torch.arange(steps + 1, dtype=u_scale.dtype, device=u_scale.device)
    offset = (u_scale - sigma * time[1:]).max()
    if bool(start.mantissa.any()):
        offset = torch.maximum(offset, start.log_scale)
    return sigma * time + offset


def _measured_scales(A: Scaled, u: Scaled, u_scale: Tensor, start: Scaled) -> Tensor:
    """s_t = log of the largest entry of h_t, from a sweep that divides by it at every step.

    For growth that is no straight line: periodic or reducible matrices, inputs that rise and fall.
    """
    A_m, a = A.mantissa.detach().t(), float(A.log_scale)
    m, s = start.mantissa.detach(), float(start.log_scale)
    if not bool(m.any()):
        s = float(u_scale[0])
    scales = [s]
    for u_t, log_u in zip(u.mantissa.detach().unbind(0), u_scale.cpu().tolist()):
        top = max(log_u, s + a)
        m = m @ A_m * math.exp(s + a - top) + u_t * math.exp(log_u - top)
        largest = float(m.max())
        if largest > 0:
            m, top = m / largest, top + math.log(largest)
        s = top
        scales.append(s)
    return torch.tensor(scales, dtype=u_scale.dtype, device=u_scale.device)


# ---- the growth of powers of a nonnegative matrix ------------------------------------------------


def perron_root(A: Tensor, u: Tensor, v: Tensor, iterations: int = 8) -> float:
    """The largest eigenvalue of a nonnegative matrix, roughly; it is used as a common scale.

    u: where powers of A begin; v: how what they make is weighed. With what enters and leaves the
    units of a net no rescaling changes the result, and one by powers of two not even its last bit:
    a scale that twins do not share would round their metrics differently.
    """
    x, ratio = u / (v @ u), v.new_zeros(())
    for _ in range(iterations):
        y = A @ x
        ratio = v @ y
        x = y / ratio
    value = float(ratio)
    return value if math.isfinite(value) else 0.0


_LEAST = 1e-150
"""Sums between this and its inverse are as good as scaled ones."""


def _totals(A: Tensor, first: Tensor, iterations: int) -> list[float]:
    """The sum of A^n first for n = 0 .. iterations, in one sweep without scales."""
    entering = A.new_zeros(iterations + 1, 1, len(first))
    entering[0, 0] = first
    return linear_sweep(A, entering).sum((1, 2)).tolist()  # type: ignore[no-any-return]


def log_growth(A: Tensor, first: Tensor, iterations: int = 32) -> float:
    """log of the growth rate of A^n first, over the second half of the iterations; -inf if zero."""
    half = iterations // 2
    totals = _totals(A, first, iterations) if A.is_cpu else []
    if totals and min(totals) > _LEAST and max(totals) < 1 / _LEAST:
        return math.log(totals[-1] / totals[half]) / (iterations - half)
    x, logs = first, [0.0]
    for _ in range(iterations):
        y = A @ x
        total = float(y.sum())
        if not 0 < total < math.inf:
            return -math.inf
        logs.append(logs[-1] + math.log(total))
        x = y / total
    return (logs[-1] - logs[half]) / (iterations - half)

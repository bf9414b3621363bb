"""One sweep through a linear recurrence with an input of its own at every step."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, address, fields


class LinearSweepCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "steps rows hidden transposed backwards"),
        *fields(POINTER, "a u start ratios m"),
    ]


def linear_sweep(
    A: Tensor,
    u: Tensor,
    start: Tensor | None = None,
    ratios: Tensor | None = None,
    *,
    backwards: bool = False,
) -> Tensor:
    """m_t = r_t A m_{t-1} + u_t from m_0 = start.

    Backwards: m_t = r_t A m_{t+1} + u_t from m_{T+1} = start.

    A (H, H), u and the result (T, B, H), start (B, H) or None for zero, ratios r (T,) in float64 or
    None for ones.
    """
    steps, rows, hidden = u.shape
    if A.shape != (hidden, hidden) or (start is not None and start.shape != (rows, hidden)):
        of_start = None if start is None else tuple(start.shape)
        raise ValueError(
            f"A {tuple(A.shape)} and start {of_start} do not fit inputs of shape {tuple(u.shape)}"
        )
    if ratios is not None and (ratios.shape != (steps,) or ratios.dtype != torch.float64):
        raise ValueError(
            f"{steps} ratios are wanted in float64, not {tuple(ratios.shape)} in {ratios.dtype}"
        )
    A, u = A.detach(), u.detach()
    dtype, tensors = u.dtype, [A, u] if start is None else [A, u, start]
    if (
        dtype not in native.C_TYPES
        or not native.accepts(*tensors, ratios)
        or any(t.dtype is not dtype for t in tensors)
    ):
        return by_torch(A, u, start, ratios, backwards=backwards)
    transposed = not A.is_contiguous() and A.t().is_contiguous()
    A, u = (A.t() if transposed else A).contiguous(), u.contiguous()
    start, ratios = (t if t is None else t.detach().contiguous() for t in (start, ratios))
    m = torch.empty_like(u)
    arguments = LinearSweepCall(
        *(steps, rows, hidden, transposed, backwards),
        address(A, dtype, hidden, hidden),
        address(u, dtype, steps, rows, hidden),
        address(start, dtype, rows, hidden),
        address(ratios, torch.float64, steps),
        address(m, dtype, steps, rows, hidden),
    )
    native.call("linear_sweep", arguments, dtype)
    return m


def by_torch(
    A: Tensor, u: Tensor, start: Tensor | None, ratios: Tensor | None, *, backwards: bool
) -> Tensor:
    """`linear_sweep` in torch alone."""
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

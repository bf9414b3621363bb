"""kappa2's sum for a matrix whose powers approach rank one."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.fallback import rank_one_sum as fallback
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

_CERTIFIED, _TOO_SMALL = 1, 2  # `RankOne` of rank_one_sum.h


class RankOneSumCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "steps hidden adjoint most threads"),
        *fields(POINTER, "a before delta total"),
        ("tolerance", REAL),
        ("result", INT),
    ]


def rank_one_sum(
    A: Tensor, before: Tensor, delta: Tensor, tolerance: float, *, adjoint: bool
) -> Tensor | None:
    """S = sum_n (A^n)^T .* sum_s delta_{s+n+2} h_s^T in float64; None where no power of A is found to be rank one.

    A (H, H) float64, nonnegative; before[s] = h_s and delta[t-1] = delta_t, both (T, H); T > 8. Products are made in
    their dtype, or in float64 where that is too narrow. adjoint: delta_t = A^T delta_{t+1} for t < T.
    """
    steps, hidden = before.shape
    if A.shape != (hidden, hidden) or A.dtype != torch.float64 or delta.shape != before.shape:
        raise ValueError(
            f"A {tuple(A.shape)} {A.dtype} must be square in float64, before {tuple(before.shape)} and "
            f"delta {tuple(delta.shape)} sequences of its size"
        )
    if steps <= 8:
        raise ValueError(f"{steps} steps are too few")
    A, before, delta = A.detach(), before.detach(), delta.detach()
    dtype = before.dtype
    if (
        dtype not in native.C_TYPES
        or delta.dtype is not dtype
        or not native.accepts(A, before, delta)
    ):
        return fallback.rank_one_sum(A, before, delta, tolerance, adjoint=adjoint)
    A, before, delta = A.contiguous(), before.contiguous(), delta.contiguous()
    total = torch.empty_like(A)
    arguments = RankOneSumCall(
        *(steps, hidden, adjoint, fallback.most_powers(steps), native.thread_count()),
        address(A, torch.float64, hidden, hidden),
        *(address(t, dtype, steps, hidden) for t in (before, delta)),
        address(total, torch.float64, hidden, hidden),
        tolerance,
    )
    native.call("rank_one_sum", arguments, dtype)
    if arguments.result == _TOO_SMALL:
        return rank_one_sum(A, before.double(), delta.double(), tolerance, adjoint=adjoint)
    return total if arguments.result == _CERTIFIED else None

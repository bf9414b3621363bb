"""kappa2's sum for a matrix whose powers approach rank one.

By torch: kappa2's sum for matrices whose powers approach rank one, which is what most nonnegative
matrices do.

    A^n ~ l^n v w^T        A v = l v,  w A = l w,  w v = 1        B = A / l

Certificate. If |B^m - v w^T| <= tol * v w^T holds entrywise for one m it holds for every n >= m,
because B >= 0 and B v = v. So it is looked at once; the powers below m are computed, and what
follows is one term,

    S^T = sum_{n<m} B^n .* l^n N_n + (v w^T) .* sum_{n>=m} l^n N_n
    N_n = M_n^T = sum_t h_{t-n-2} delta_t^T

With outputs at the last step only, delta_t = (A^T)^(T-t) delta_T is l^(T-m-t) delta_{T-m} for every
t <= T-m by the same certificate. Then l^n N_n are products of m+1 rows instead of T, and with p_j =
sum_{s<=j} l^(j-s) h_s

    l^n N_n            = l^n p_{T-m-2-n} delta_{T-m}^T + sum_{t>T-m} l^n h_{t-n-2} delta_t^T
    sum_{n>=m} l^n N_n = sum_s (T-2m-1-s) l^(T-m-2-s) h_s delta_{T-m}^T
                         + sum_{t>T-m} l^m p_{t-m-2} delta_t^T

The vectors are float64, the powers of the dtype of the sequences. In float32 something may be too
small to be seen; the result is taken only where its last term, a part of every entry, is far above
whatever can have been lost.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.kernels import native
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
    """S = sum_n (A^n)^T .* sum_s delta_{s+n+2} h_s^T in float64.

    None where no power of A is found to be rank one.

    A (H, H) float64, nonnegative; before[s] = h_s and delta[t-1] = delta_t, both (T, H); T > 8.
    Products are made in their dtype, or in float64 where that is too narrow. adjoint: delta_t = A^T
    delta_{t+1} for t < T.
    """
    steps, hidden = before.shape
    if A.shape != (hidden, hidden) or A.dtype != torch.float64 or delta.shape != before.shape:
        raise ValueError(
            f"A {tuple(A.shape)} {A.dtype} must be square in float64, "
            f"before {tuple(before.shape)} and "
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
        return by_torch(A, before, delta, tolerance, adjoint=adjoint)
    A, before, delta = A.contiguous(), before.contiguous(), delta.contiguous()
    total = torch.empty_like(A)
    arguments = RankOneSumCall(
        *(steps, hidden, adjoint, most_powers(steps), native.thread_count()),
        address(A, torch.float64, hidden, hidden),
        *(address(t, dtype, steps, hidden) for t in (before, delta)),
        address(total, torch.float64, hidden, hidden),
        tolerance,
    )
    native.call("rank_one_sum", arguments, dtype)
    if arguments.result == _TOO_SMALL:
        return rank_one_sum(A, before.double(), delta.double(), tolerance, adjoint=adjoint)
    return total if arguments.result == _CERTIFIED else None


# More exact powers than this cost more than the short cut saves; measured at H = 100.
_MOST_POWERS = 48


@dataclass(frozen=True)
class Perron:
    """The dominant eigenvalue and vectors of a nonnegative matrix, w v = 1."""

    root: float
    right: Tensor
    left: Tensor


def most_powers(steps: int) -> int:
    """How many powers may be made before the exact sum is cheaper."""
    return min(_MOST_POWERS, steps // 2)


def by_torch(
    A: Tensor, before: Tensor, delta: Tensor, tolerance: float, *, adjoint: bool
) -> Tensor | None:
    """`rank_one_sum` in torch alone."""
    steps = before.shape[0]
    perron = dominant(A, before[-1], delta[0], tolerance / steps)
    if perron is None:
        return None
    B = (A / perron.root).to(before.dtype)
    powers = certified_powers(B, perron, most_powers(steps), tolerance)
    if powers is None:
        return None
    terms = _few_rows if adjoint and len(powers) < steps // 4 else _all_rows
    head, tail = terms(powers, perron.root, before, delta)
    tail.mul_(torch.outer(perron.right, perron.left).to(tail.dtype))
    if tail.dtype == torch.float32 and not _is_certain(tail, before, delta):
        return by_torch(A, before.double(), delta.double(), tolerance, adjoint=adjoint)
    return head.add_(tail).t().to(A)


def _is_certain(tail: Tensor, before: Tensor, delta: Tensor) -> bool:
    """Whether numbers below the range of float32, each times at most T h delta, cannot matter."""
    steps, hidden = before.shape
    lost = (
        torch.finfo(tail.dtype).tiny
        * steps
        * hidden
        * steps
        * float(before.amax())
        * float(delta.amax())
    )
    return float(tail.amin()) > 1e9 * lost


def _all_rows(
    powers: list[Tensor], root: float, before: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor]:
    """The terms below m, and the sum in the last one, for all sequences."""
    steps, m = before.shape[0], len(powers) + 1
    head = torch.diag((before[:-1] * delta[1:]).sum(0))
    for n, power in enumerate(powers, 1):
        head.addcmul_(power, before[: steps - n - 1].t() @ delta[n + 1 :], value=root**n)
    length = steps - m - 1
    weighted = prefix_sums(before[:length], root).mul_(root**m)
    return head, weighted.t() @ delta[m + 1 :]


def _few_rows(
    powers: list[Tensor], root: float, before: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor]:
    """The same where delta_t = l^(T-m-t) delta_{T-m} for t <= T-m."""
    steps, m = before.shape[0], len(powers) + 1
    left, rows = _prefixes(root, m, before), delta[steps - m - 1 :]
    head = torch.diag((before[:-1] * delta[1:]).sum(0))
    for n, power in enumerate(powers, 1):
        lagged = (
            torch.cat([left[m - n, None], before[steps - m - 1 - n : steps - 1 - n]]).t() @ rows
        )
        head.addcmul_(power, lagged, value=root**n)
    left[1:].mul_(root**m)
    return head, left.t() @ rows


def _prefixes(root: float, m: int, before: Tensor) -> Tensor:
    """sum_s (T-2m-1-s) l^(T-m-2-s) h_s, and p_j for j = T-2m-1 .. T-m-2."""
    steps = before.shape[0]
    s = torch.arange(steps - m - 1, dtype=torch.float64, device=before.device)
    ends = torch.arange(steps - 2 * m - 1, steps - m - 1, dtype=torch.float64, device=before.device)
    behind = ends[:, None] - s
    weights = torch.where(behind < 0, 0.0, root**behind)
    ramp = (steps - 2 * m - 1 - s).clamp_(min=0).mul_(root ** (steps - m - 2 - s))
    return torch.cat([ramp[None], weights]).to(before.dtype) @ before[: len(s)]


def prefix_sums(x: Tensor, ratio: float) -> Tensor:
    """s_j = sum_{k=0}^{j} ratio^k x_{j-k} of x (L, H), by doubling the number of terms."""
    done = 1
    while done < len(x):
        x = torch.cat([x[:done], torch.add(x[done:], x[:-done], alpha=ratio**done)])
        done *= 2
    return x


def dominant(
    A: Tensor, right: Tensor, left: Tensor, tolerance: float, rounds: int = 5
) -> Perron | None:
    """Perron's root and vectors of A, float64, by power iteration from vectors that are near them.

    None where A v = l v and w A = l w do not hold to `tolerance` in every entry, or nothing is
    positive.
    """
    right, left, At = right.to(A), left.to(A), A.t()
    if not bool((left > 0).all()):
        left = torch.ones_like(left)
    for _ in range(rounds):
        for _ in range(3):
            right, left = torch.mv(A, right), torch.mv(At, left)
        right, left = right / right.sum(), left / left.sum()
        ahead, back = torch.mv(A, right).div_(right), torch.mv(At, left).div_(left)
        low, high = torch.stack([ahead, back]).aminmax()
        root = float(low)
        if not 0 < root < math.inf:
            return None
        if float(high) - root <= tolerance * root:
            return Perron(root, right, left / torch.dot(left, right))
    return None


def certified_powers(B: Tensor, perron: Perron, most: int, tolerance: float) -> list[Tensor] | None:
    """B^1..B^(m-1) of B = A / l, m the first power that is rank one to `tolerance` in every entry.

    None if none up to `most` is, or if it would hardly come nearer.
    """
    limit = torch.outer(perron.right, perron.left).reciprocal_().to(B.dtype)
    powers, previous = [B], math.inf
    for m in range(2, most + 1):
        powers.append(powers[-1] @ B)
        low, high = (float(v) for v in (powers[-1] * limit).aminmax())
        error = max(1 - low, high - 1)
        if error <= tolerance:
            return powers[:-1]
        if m >= 4 and not error < 0.9 * previous:
            return None  # hardly any gap: the exact route is cheaper than waiting
        previous = error
    return None

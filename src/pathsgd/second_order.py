"""The sum inside kappa2 of a recurrent matrix, exactly, and by a certified short cut where the matrix allows one.

    S = sum_{n=0}^{T-2} (A^n)^T .* M_n        M_n = sum_s delta_{s+n+2} h_s^T        kappa2 = 4 A .* S

Glossary: A >= 0 (H, H); before[t] = h_t, t = 0..T-1; delta[t] = delta_{t+1}; both (T, H), scaled so that opposite
powers cancel. Exactly, S takes T products of H x H (`exact_sum`).

Perron's short cut. Powers of a nonnegative matrix approach rank one: A^n ~ l^n v w^T, A v = l v, w A = l w, w v = 1. If
|A^m - l^m v w^T| <= tol * l^m v w^T holds entrywise for one m it holds for every n >= m, because A >= 0 and A v = l v:
the certificate is checked once and the tail from m on is a single product. Matrices without a spectral gap (the
identity) never pass and take the exact route. In the head, n < m, `adjoint=True` says delta_t = A^T delta_{t+1} for
t < T (outputs at the last step only), which gives M_n = A^T M_{n+1} + delta_T h_{T-n-2}^T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# More exact powers than this cost more than the short cut saves; measured at H = 100.
_MOST_POWERS = 48


@dataclass(frozen=True)
class Perron:
    """The dominant eigenvalue and vectors of a nonnegative matrix, w v = 1."""

    root: Tensor
    right: Tensor
    left: Tensor


def second_order_sum(
    A: Tensor,
    before: Tensor,
    delta: Tensor,
    *,
    adjoint: bool,
    tolerance: float = 1e-6,
    exact_in: torch.dtype = torch.float64,
) -> Tensor:
    """S, entrywise within a relative `tolerance` of the exact sum.

    exact_in: dtype of the exact route, where there is no short cut. Its sums are of nonnegative terms; the certificate
    of the short cut asks for more than float32 can show, so the arguments themselves are float64.
    """
    steps = before.shape[0]
    if steps < 2:
        return torch.zeros_like(A)
    perron = dominant(A)
    if perron is not None and steps > 8:
        powers = certified_powers(A, perron, min(_MOST_POWERS, steps // 2), tolerance)
        if powers is not None:
            return _head(powers, A, before, delta, adjoint=adjoint) + _tail(perron, len(powers), before, delta)
    return exact_sum(*(t.to(exact_in) for t in (A, before, delta))).to(A)


def exact_sum(A: Tensor, before: Tensor, delta: Tensor) -> Tensor:
    """S in one sweep back through time:  S = sum_s X_{s+2} diag(h_s),  X_t = diag(delta_t) + X_{t+1} A^T."""
    total, X, At = torch.zeros_like(A), torch.zeros_like(A), A.t().contiguous()
    for s in range(before.shape[0] - 2, -1, -1):
        X = X @ At
        X.diagonal().add_(delta[s + 1])
        total.addcmul_(X, before[s])
    return total


def _lagged(before: Tensor, delta: Tensor, n: int) -> Tensor:
    """M_n: delta_{s+n+2} = delta[s+n+1] against h_s = before[s]."""
    return delta[n + 1 :].t() @ before[: before.shape[0] - n - 1]


def dominant(A: Tensor, squarings: int = 7) -> Perron | None:
    """Perron's root and vectors from A^(2^squarings); None where they are not positive (no single dominant class)."""
    power = A
    for _ in range(squarings):
        power = power @ power
        top = power.amax()
        if not bool(top > 0) or not bool(top.isfinite()):
            return None
        power = power / top
    right, left = power.sum(1), power.sum(0)
    for _ in range(4):
        right, left = A @ right, left @ A
        right, left = right / right.sum(), left / left.sum()
    if not bool((right > 0).all() and (left > 0).all()):
        return None
    root = (left @ (A @ right)) / (left @ right)
    return Perron(root, right, left / (left @ right))


def certified_powers(A: Tensor, perron: Perron, most: int, tolerance: float) -> list[Tensor] | None:
    """A^0..A^(m-1), m the first power that is rank one to `tolerance` in every entry; None if none up to `most` is."""
    limit, root = torch.outer(perron.right, perron.left), float(perron.root)
    powers = [torch.eye(A.shape[0], dtype=A.dtype, device=A.device)]
    previous = torch.inf
    for m in range(1, most + 1):
        power = A @ powers[-1] if m > 1 else A
        error = float((power / limit).sub_(root**m).abs_().amax()) / root**m
        if error <= tolerance:
            return powers
        if m >= 4 and error > 0.9 * previous:
            return None  # hardly any gap: the exact route is cheaper than waiting
        previous = error
        powers.append(power)
    return None


def _head(powers: list[Tensor], A: Tensor, before: Tensor, delta: Tensor, *, adjoint: bool) -> Tensor:
    """sum over n < m, exactly."""
    total, steps = torch.zeros_like(A), before.shape[0]
    lagged = _lagged(before, delta, len(powers) - 1)
    for n in range(len(powers) - 1, -1, -1):
        total.addcmul_(powers[n].t(), lagged)
        if n and adjoint:
            lagged = torch.addr(A.t() @ lagged, delta[-1], before[steps - n - 1])
        elif n:
            lagged = _lagged(before, delta, n - 1)
    return total


def _tail(perron: Perron, start: int, before: Tensor, delta: Tensor) -> Tensor:
    """sum over n >= m with A^n = l^n v w^T:  (w v^T) .* sum_j delta_j (sum_k l^(m+k) h_{j-2-m-k})^T."""
    length = before.shape[0] - start - 1
    if length <= 0:
        return torch.zeros(perron.right.shape[0], perron.left.shape[0], dtype=before.dtype, device=before.device)
    root = float(perron.root)
    weighted = prefix_sums(before[:length], root).mul_(root**start)
    return torch.outer(perron.left, perron.right) * (delta[start + 1 :].t() @ weighted)


def prefix_sums(x: Tensor, ratio: float, block: int = 64) -> Tensor:
    """s_j = sum_{k=0}^{j} ratio^k x_{j-k} of x (L, H): inside blocks by one product, from block to block by a loop."""
    length, width = x.shape
    count = -(-length // block)
    padded = torch.zeros(count * block, width, dtype=x.dtype, device=x.device)
    padded[:length] = x
    side_by_side = padded.view(count, block, width).transpose(0, 1).reshape(block, count * width)
    exponents = torch.arange(block, dtype=x.dtype, device=x.device)
    sums = (ratio ** (exponents[:, None] - exponents).clamp(min=0)).tril() @ side_by_side
    fade, carried = (ratio ** (exponents + 1))[:, None], torch.zeros_like(x[0])
    for own in sums.split(width, 1):
        own.addcmul_(fade, carried)
        carried = own[-1]
    return sums.view(block, count, width).transpose(0, 1).reshape(-1, width)[:length]

"""The sum inside kappa2 of a recurrent matrix, exactly, and by a certified short cut where the matrix allows one.

    S = sum_{n=0}^{T-2} (A^n)^T .* M_n        M_n = sum_s delta_{s+n+2} h_s^T        kappa2 = 4 A .* S

Glossary: A >= 0 (H, H); before[t] = h_t, t = 0..T-1; delta[t] = delta_{t+1}; both (T, H), scaled so that opposite
powers cancel; ratios[t] = r_{t+1}. Exactly, S takes T products of H x H (`exact_sum`).

Perron's short cut. Powers of a nonnegative matrix approach rank one: A^n ~ l^n v w^T, A v = l v, w A = l w, w v = 1. If
|A^m - l^m v w^T| <= tol * l^m v w^T holds entrywise for one m it holds for every n >= m, because A >= 0 and A v = l v:
the certificate is checked once and the tail from m on is a single product. Matrices without a spectral gap (the
identity) never pass and take the exact route. In the head, n < m, `adjoint=True` says delta_t = A^T delta_{t+1} for
t < T (outputs at the last step only), which gives M_n = A^T M_{n+1} + delta_T h_{T-n-2}^T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.arithmetic.perron import Perron, certified_powers, dominant

# More exact powers than this cost more than the short cut saves; measured at H = 100.
_MOST_POWERS = 48


def second_order_sum(
    A: Tensor,
    before: Tensor,
    delta: Tensor,
    *,
    ratios: Tensor | None = None,
    adjoint: bool = False,
    tolerance: float = 1e-6,
    exact_in: torch.dtype = torch.float64,
) -> Tensor:
    """S, entrywise within a relative `tolerance` of the exact sum.

    ratios: (T,), the factor r_t of every use of A at step t (recurrence.py: `States.ratios`); None for ones. S is then
        the sum with r A in the place of A, times r^2 for the two uses of the edge itself.
    exact_in: dtype of the exact route, where there is no short cut. Its sums are of nonnegative terms; the certificate
        of the short cut asks for more than float32 can show, so the arguments themselves are float64.
    """
    steps = before.shape[0]
    if steps < 2:
        return torch.zeros_like(A)
    ratio = 1.0 if ratios is None else _common(ratios, tolerance / steps)
    if ratio is not None and steps > 8:
        powers_of = A if ratio == 1 else A * ratio
        perron = dominant(powers_of)
        most = min(_MOST_POWERS, steps // 2)
        powers = None if perron is None else certified_powers(powers_of, perron, most, tolerance)
        if perron is not None and powers is not None:
            head = _head(powers, powers_of, before, delta, adjoint=adjoint)
            return (head + _tail(perron, len(powers), before, delta)).mul_(ratio**2)
    A_in, before, delta = (t.to(exact_in) for t in (A, before, delta))
    return exact_sum(A_in, before, delta, ratios).to(A)


def _common(ratios: Tensor, tolerance: float) -> float | None:
    """The one ratio of all steps, or None where they differ by more than a relative `tolerance`."""
    low, high = float(ratios.min()), float(ratios.max())
    return (low + high) / 2 if low > 0 and high - low <= tolerance * high else None


def exact_sum(A: Tensor, before: Tensor, delta: Tensor, ratios: Tensor | None = None) -> Tensor:
    """S for every matrix, in one sweep back through time that gathers the powers of A.

    X_t = diag(delta_t) + r_{t+1} X_{t+1} A^T        S = sum_s r_{s+1} r_{s+2} X_{s+2} diag(h_s)
    """
    # A path that uses an edge twice visits only units that something reaches; the others may be out of range.
    reached = before.amax(0) > 0
    delta = torch.where(reached, delta, 0.0)
    At = torch.where(reached & reached[:, None], A, 0.0).t().contiguous()
    total, X, steps = torch.zeros_like(A), torch.zeros_like(A), before.shape[0]
    r = [1.0] * (steps + 1) if ratios is None else [*ratios.cpu().tolist(), 0.0]
    for s in range(steps - 2, -1, -1):
        X = X @ At
        if ratios is not None:
            X.mul_(r[s + 2])
        X.diagonal().add_(delta[s + 1])
        total.addcmul_(X, before[s], value=r[s] * r[s + 1])
    return total


def _lagged(before: Tensor, delta: Tensor, n: int) -> Tensor:
    """M_n: delta_{s+n+2} = delta[s+n+1] against h_s = before[s]."""
    return delta[n + 1 :].t() @ before[: before.shape[0] - n - 1]


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

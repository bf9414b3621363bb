"""The sum inside kappa2 of a recurrent matrix, exactly, and by certified short cuts where the matrix allows one.

    S = sum_{n=0}^{T-2} (A^n)^T .* M_n        M_n = sum_s delta_{s+n+2} h_s^T        kappa2 = 4 A .* S

Glossary: A >= 0 (H, H); before[t] = h_t, t = 0..T-1; delta[t] = delta_{t+1}; both (T, H), scaled so that opposite
powers cancel; ratios[t] = r_{t+1}. Exactly, S takes T products of H x H (`exact_sum`). Two kinds of matrices take a
few: those near a multiple of the identity (near_identity.py), and those with a spectral gap
(kernels/fallback/rank_one_sum.py). Whatever is neither takes the exact route. All numbers are nonnegative, so that
nothing cancels in any of the three.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.arithmetic.near_identity import near_identity_sum
from pathsgd.kernels.rank_one_sum import rank_one_sum


def second_order_sum(
    A: Tensor,
    before: Tensor,
    delta: Tensor,
    *,
    ratios: Tensor | None = None,
    adjoint: bool = False,
    tolerance: float = 1e-6,
) -> Tensor:
    """S in float64, entrywise within a relative `tolerance` of the exact sum.

    A is float64; the products are made in the dtype of `before` and `delta`.
    ratios: (T,), the factor r_t of every use of A at step t (recurrence.py: `States.ratios`); None for ones. S is then
        the sum with r A in the place of A, times r^2 for the two uses of the edge itself.
    adjoint: delta_t = r A^T delta_{t+1} for all t < T, as with outputs at the last step only.
    """
    steps = before.shape[0]
    if steps < 2:
        return torch.zeros_like(A)
    ratio = 1.0 if ratios is None else _common(ratios, tolerance / steps)
    if ratio is not None and steps > 8:
        powers_of = A if ratio == 1 else A * ratio
        total = near_identity_sum(powers_of, before, delta, tolerance)
        if total is None:
            total = rank_one_sum(powers_of, before, delta, tolerance, adjoint=adjoint)
        if total is not None:
            return total if ratio == 1 else total.mul_(ratio**2)
    return exact_sum(A.to(before.dtype), before, delta, ratios).to(A)


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

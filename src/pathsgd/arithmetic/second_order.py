"""The sum inside kappa2 of a recurrent matrix: exact, and certified short cuts.

    S = sum_{n=0}^{T-2} (A^n)^T .* M_n       M_n = sum_s delta_{s+n+2} h_s^T       kappa2 = 4 A .* S

Glossary: A >= 0 (H, H); before[t] = h_t, t = 0..T-1; delta[t] = delta_{t+1}; both (T, H), scaled so
that opposite powers cancel; ratios[t] = r_{t+1}. Exactly, S takes T products of H x H
(`exact_sum`). Two kinds of matrices take a
few: those near a multiple of the identity (near_identity.py), and those with a spectral gap
(kernels/rank_one_sum.py). Whatever is neither takes the exact route. All numbers are
nonnegative, so that nothing cancels in any of the three.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
    ratios: (T,), the factor r_t of every use of A at step t (recurrence.py: `States.ratios`); None
        for ones. S is then the sum with r A in the place of A, times r^2 for the two uses of the
        edge itself.
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
    # A path that uses an edge twice visits only units that something reaches; the others may be out
    # of range.
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


# ---- matrices near a multiple of the identity --------------------------------------------------
#
# Their powers have no gap between eigenvalues. But A = a I + F with a the least diagonal entry and
# F >= 0 small, so that
#
#     A^n = sum_k C(n, k) a^(n-k) F^k        S = sum_k (G^k)^T .* N_k        G = F / f
#     N_k = sum_s y^k_s h_s^T                y^k_s = sum_n C(n, k) a^(n-k) f^k delta_{s+n+2}
#
# needs as many k as a path of T steps has uses of F: one for the identity, about T f / a near it.
# y^0_s = delta_{s+2} + a y^0_{s+1}, y^k_s = f y^{k-1}_{s+1} + a y^k_{s+1}.
#
# Certificate. f has F x <= f x for a positive x (Collatz and Wielandt), so G^k_ji <= x_j / x_i for
# every k. The terms after K add up to at most q / (1 - q) N_K .* (x_j / x_i)_ij, because
# f^k C(n, k) a^(n-k) falls by a factor of at most q = f (T-2-K) / (a (K+1)) per term.

_MARGIN = 1 + 1e-5
"""The bound f of F is computed in floating point."""


def near_identity_sum(A: Tensor, before: Tensor, delta: Tensor, tolerance: float) -> Tensor | None:
    """S (second_order.py) in float64, or None where the exact sum is cheaper."""
    (steps, hidden), x = before.shape, before[-1].to(A)
    a, largest = (float(end) for end in A.diagonal().aminmax())
    if not a > 0 or not _is_worth_while(steps, hidden, a, largest - a):  # f is at least that
        return None
    least, grown = torch.stack([x.amin(), torch.mv(A, x).div_(x).amax()]).tolist()
    if not least > 0 or not _is_worth_while(steps, hidden, a, grown - a):
        return None
    F = A.clone()
    F.diagonal().sub_(a)
    f = (
        float(torch.mv(F, x).div_(x).amax()) * _MARGIN
    )  # not grown - a, which may have lost all its digits
    h, y = before[:-1], _fading_sums(delta[1:], a)
    total = torch.diag((y * h).sum(0))
    most = 2 * _expected_terms(steps, a, f)
    return (
        total.to(A) if f == 0 else _with_further_terms(total, F / f, a, f, h, y, x, most, tolerance)
    )


def _expected_terms(steps: int, a: float, f: float) -> float:
    """How many k are probably needed: uses of F among T steps are nearly binomial."""
    mean = steps * f / (a + f)
    return mean + 4 * math.sqrt(mean) + 10


def _is_worth_while(steps: int, hidden: int, a: float, f: float) -> bool:
    """Whether all terms cost less than the exact sum; a term costs several steps (measured)."""
    if f <= 1e-15 * a:
        return True
    return _expected_terms(steps, a, f) * (3 + 1.8 * steps / hidden) < steps


def _with_further_terms(
    total: Tensor,
    G: Tensor,
    a: float,
    f: float,
    h: Tensor,
    y: Tensor,
    x: Tensor,
    most: float,
    tolerance: float,
) -> Tensor | None:
    largest = (x / x[:, None]).to(h.dtype)  # x_j / x_i, at (i, j)
    G = G.t().to(h.dtype)
    power = G
    for k in range(1, math.ceil(most) + 1):
        y = _fading_sums(f * y[1:], a)  # one step shorter: k uses of F need k steps between
        h = h[:-1]
        if not len(y):
            return total.double()
        N = y.t() @ h
        total.addcmul_(power, N)
        q = f * (len(y) - 1) / (a * (k + 1))
        if q < 0.5 and bool((N * largest * (q / (1 - q)) <= tolerance * total).all()):
            return total.double()
        power = power @ G
    return None


def _fading_sums(x: Tensor, ratio: float) -> Tensor:
    """s_j = sum_{k>=0} ratio^k x_{j+k} of x (L, H), by doubling the number of terms."""
    done = 1
    while done < len(x):
        x = torch.cat([torch.add(x[:-done], x[done:], alpha=ratio**done), x[-done:]])
        done *= 2
    return x

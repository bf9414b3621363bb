"""kappa2's sum for matrices near a multiple of the identity, where nets start that are to remember.

Their powers have no gap to fall into. But A = a I + F with a the least diagonal entry and F >= 0 small, so that

    A^n = sum_k C(n, k) a^(n-k) F^k        S = sum_k (G^k)^T .* N_k        G = F / f
    N_k = sum_s y^k_s h_s^T                y^k_s = sum_n C(n, k) a^(n-k) f^k delta_{s+n+2}

needs as many k as a path of T steps has uses of F: one for the identity, about T f / a and some more near it.
Successive y come from one another: y^0_s = delta_{s+2} + a y^0_{s+1}, y^k_s = f y^{k-1}_{s+1} + a y^k_{s+1}.

Certificate. f is chosen with F x <= f x for a positive x (Collatz and Wielandt), so G^k_ji <= x_j / x_i for every k.
What follows the term K is then at most q / (1 - q) N_K .* (x_j / x_i)_ij, because f^k C(n, k) a^(n-k) falls by a factor
of at most q = f (T-2-K) / (a (K+1)) from each k >= K to the next.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MARGIN = 1 + 1e-5
"""The bound f of F is looked at in floating point."""


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
    """How many k are likely to be needed: the uses of F among T steps are nearly a binomial variable."""
    mean = steps * f / (a + f)
    return mean + 4 * math.sqrt(mean) + 10


def _is_worth_while(steps: int, hidden: int, a: float, f: float) -> bool:
    """Whether all terms take less than the exact sum; a term takes as long as several of its steps (measured)."""
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

"""How powers of a nonnegative matrix grow: Perron's root, its largest eigenvalue, is the largest rate of A^n x."""

from __future__ import annotations

import math

from torch import Tensor

from pathsgd.kernels.linear_sweep import linear_sweep


def perron_root(A: Tensor, u: Tensor, v: Tensor, iterations: int = 8) -> float:
    """The largest eigenvalue of a nonnegative matrix, roughly: only its use as a common scale matters.

    u: where powers of A begin; v: how what they make is weighed. With what enters and leaves the units of a net no
    rescaling changes the result, and one by powers of two not even its last bit: a scale that twins do not share would
    round their metrics differently.
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
    """log of the rate at which A^n first grows, averaged over the second half of the iterations; -inf if it ends."""
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

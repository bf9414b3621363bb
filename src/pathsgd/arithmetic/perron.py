"""How powers of a nonnegative matrix grow: Perron's root and vectors.

    A v = l v,  w A = l w,  w v = 1,        A^n ~ l^n v w^T

The root is also the largest rate at which A^n x can grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd._native import linear_sweep


@dataclass(frozen=True)
class Perron:
    """The dominant eigenvalue and vectors of a nonnegative matrix, w v = 1."""

    root: Tensor
    right: Tensor
    left: Tensor


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

"""The bound on how much a step may change what a repeated matrix does over all its uses.

A matrix that paths use T times turns a step D into a factor of up to (1 + |D|_2)^T on signals and gradients: the one
way in which a small step of a recurrent net explodes, and one that gamma^2 cannot see, because it squares every weight
and so ignores that the entries of D pull together. The whole step is shortened until T * |D|_2 <= limit, D taken in
balanced coordinates, so that the bound is invariant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathsgd import _native
from pathsgd._native import GRADIENT, Update

if TYPE_CHECKING:
    from pathsgd.optim.moves import Move


def bound(moves: Sequence[Move], updates: Sequence[Update], limit: float | None) -> tuple[float | None, float]:
    """The step's growth, and the factor that keeps it below `limit`; None and 1 where there is no limit.

    The growth is that before bounding; an upper bound of it where that already satisfies the limit.
    """
    if limit is None:
        return None, 1.0
    largest = 0.0
    for move, update in zip(moves, updates):
        for index, state in enumerate(move.part.states):
            if "repeats" not in state:
                continue
            uses = abs(move.alpha) * state["repeats"]
            if move.rule.direction == GRADIENT and "growth_ratio" not in state:
                # Balanced, the step of a plain gradient is u: |u|_2 <= |u|_F, which clipping knows already.
                most = math.sqrt(move.squares[index]) * uses
                if most <= limit:
                    state.pop("growth_direction", None)  # would be out of date when it is needed
                    largest = max(largest, most)
                    continue
            largest = max(largest, _balanced_length(move, update, index) * uses)
    return largest, min(1.0, limit / largest) if largest > 0 else 1.0


def _balanced_length(move: Move, update: Update, index: int) -> float:
    """|D|_2 of one parameter in balanced coordinates, up to `alpha`."""
    direction, state = update.direction(move.rule, index), move.part.states[index]
    if "growth_ratio" in state:
        direction = direction * state["growth_ratio"]
    step = direction.reshape(direction.shape[0], -1)
    start, iterations = state.get("growth_direction"), 2
    if start is None:
        start, iterations = _generic_vector(step), 18  # from nowhere it takes longer to find the dominant direction
    length, start = spectral_norm(step, start, iterations)
    if length > 0:  # a zero vector would never turn again
        state["growth_direction"] = start
    return length


def _generic_vector(like: Tensor) -> Tensor:
    """A vector with no symmetry, the same for every model: a start for power iteration."""
    return torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device).cos()


def spectral_norm(matrix: Tensor, start: Tensor, iterations: int = 2) -> tuple[float, Tensor]:
    """Largest singular value by power iteration from `start` (n,), and the vector to start from next time.

    A few iterations suffice from step to step: the dominant direction of successive updates changes slowly, and what
    is missed in one step is found in the next.
    """
    native = _native.spectral_norm(matrix, start, iterations)
    if native is not None:
        return native
    largest = torch.linalg.vector_norm(matrix, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return size, start
    unit, v = matrix / largest, start  # entries up to 1, and v of length 1: in the range of any dtype
    for _ in range(iterations):
        v = torch.mv(unit.t(), torch.mv(unit, v))
        v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    return size * float(torch.linalg.vector_norm(torch.mv(unit, v))), v

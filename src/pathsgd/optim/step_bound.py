"""The bound on how much a step may change what a repeated matrix does over all its uses.

A matrix that paths use T times turns a step D into a factor of up to (1 + |D|_2)^T on signals and gradients: the one
way in which a small step of a recurrent net explodes, and one that gamma^2 cannot see, because it squares every weight
and so ignores that the entries of D pull together. D is taken in balanced coordinates, so that the bound is invariant.

    T * |D|_2 <= room = 1 + T * max(0, 1 - rate)          rate: the highest of late (RELEASE)

It stands beside the bound on growth rates (growth.py), which looks at W after the step only. Where states fade, a step
may take the rate up to one, where they stand; beyond that, it may add one to the logarithm of what a signal gains over
all uses. So nets at the edge (identity starts, long memories) take small steps, and nets for text, whose states
fade, are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pathsgd.kernels.spectral_norm import spectral_norm
from pathsgd.kernels.update import GRADIENT, Update

StepLimit = float | Literal["room"] | None

LEAST_ROOM = 1.0
"""The log factor by which a step may change what a matrix does over all its uses, wherever its rate is."""

RELEASE = 0.05
"""By how much T * log(rate) is forgotten from look to look; a rise counts at once."""

if TYPE_CHECKING:
    from pathsgd.optim.moves import Move


def bound(
    moves: Sequence[Move], updates: Sequence[Update], limit: StepLimit
) -> tuple[float | None, float]:
    """The step's growth, and the factor that keeps it below `limit`; None and 1 where there is no limit.

    limit: a number, None, or "room": what the growth rate of each matrix leaves.

    The growth is that before bounding; an upper bound of it where that already satisfies the limit.
    """
    if limit is None:
        return None, 1.0
    largest, excess = 0.0, 0.0
    for move, update in zip(moves, updates):
        for index, state in enumerate(move.part.states):
            if "repeats" not in state:
                continue
            uses = abs(move.alpha) * state["repeats"]
            most = float(state.get("growth_room", LEAST_ROOM)) if limit == "room" else limit
            # Of a plain gradient the squares of all processes' parts are added up already.
            is_whole = move.rule.direction == GRADIENT or move.part.spread is None
            if "growth_ratio" not in state and is_whole:
                grown = _larger_length(move, update, index) * uses
                if grown <= most:
                    state.pop("growth_direction", None)  # would be out of date when it is needed
                    largest = max(largest, grown)
                    continue
            grown = _balanced_length(move, update, index) * uses
            largest, excess = max(largest, grown), max(excess, grown / most)
    return largest, min(1.0, 1 / excess) if excess > 0 else 1.0


def asks(moves: Sequence[Move], limit: StepLimit) -> bool:
    """Whether `bound` will look at directions, and so needs the moments before the parameters move."""
    return limit is not None and any(
        "repeats" in state for move in moves for state in move.part.states
    )


def _larger_length(move: Move, update: Update, index: int) -> float:
    """|D|_F of one parameter, up to `alpha`: one pass, and at least |D|_2, which takes a power iteration."""
    # Balanced, the step of a plain gradient is u, whose length clipping knows already.
    is_known = move.rule.direction == GRADIENT
    return math.sqrt(move.squares[index] if is_known else update.direction_square(move.rule, index))


def _balanced_length(move: Move, update: Update, index: int) -> float:
    """|D|_2 of one parameter in balanced coordinates, up to `alpha`."""
    direction, state = update.direction(move.rule, index), move.part.states[index]
    if "growth_ratio" in state:
        direction = direction * state["growth_ratio"]
    direction = move.part.whole(direction, index)
    step = direction.reshape(direction.shape[0], -1)
    start, iterations = state.get("growth_direction"), 2
    if start is None:
        start, iterations = (
            _generic_vector(step),
            18,
        )  # from nowhere it takes longer to find the dominant direction
    length, start = spectral_norm(step, start, iterations)
    if length > 0:  # a zero vector would never turn again
        state["growth_direction"] = start
    return length


def _generic_vector(like: Tensor) -> Tensor:
    """A vector with no symmetry, the same for every model: a start for power iteration."""
    return torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device).cos()

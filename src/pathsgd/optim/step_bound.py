"""The bound on how much a step may change what a repeated matrix does over all its uses.

A matrix that paths use T times turns a step D into a factor of up to (1 + |D|_2)^T on signals and
gradients. This is the one way in which a small step of a recurrent net explodes. gamma^2 cannot see
it: it squares every weight, and so ignores that the entries of D add up. D is taken in balanced
coordinates, so the bound is invariant.

    T * |D|_2 <= room = 1 + T * max(0, 1 - rate)          rate: the highest of late (RELEASE)

The bound on growth rates (growth.py) looks only at W after the step; this one adds to it. Where
states fade, a step may raise the rate to 1, where they persist. Beyond that it may add 1 to the
logarithm of the gain of a signal over all uses. So nets at the edge (identity starts, long
memories) take small steps, and nets for text, whose states fade, are not restricted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathsgd.kernels.spectral_norm import spectral_norm
from pathsgd.network.recurrences import Recurrence

if TYPE_CHECKING:
    from pathsgd.optim.state import Growth
    from pathsgd.optim.step import Move

LEAST_ROOM = 1.0
"""The log factor by which a step may change what a matrix does, wherever its rate is."""

RELEASE = 0.05
"""By how much T * log(rate) is forgotten from look to look; a rise counts at once."""


def shortening(moves: Sequence[Move]) -> float:
    """The factor that keeps the step of every repeated matrix within its room."""
    excess = 0.0
    for move in moves:
        for index, state in enumerate(move.part.states):
            growth = state.growth
            if not growth.repeats:
                continue
            uses = abs(move.alpha) * growth.repeats
            room = LEAST_ROOM if growth.room is None else float(growth.room)
            # Of a plain gradient the squares of all processes' parts are added up already.
            is_whole = move.is_gradient or move.part.spread is None
            if growth.ratio is None and is_whole and _larger_length(move, index) * uses <= room:
                growth.vector = None  # would be out of date when it is needed
                continue
            excess = max(excess, _balanced_length(move, index) * uses / room)
    return min(1.0, 1 / excess) if excess > 0 else 1.0


def _larger_length(move: Move, index: int) -> float:
    """|D|_F of one parameter, up to `alpha`: one pass, and at least |D|_2."""
    # Balanced, the step of a plain gradient is u, whose length clipping knows already.
    known = move.squares[index] if move.is_gradient else None
    return math.sqrt(move.passes.direction_square(move.rule, index) if known is None else known)


def _balanced_length(move: Move, index: int) -> float:
    """|D|_2 of one parameter in balanced coordinates, up to `alpha`."""
    direction, growth = move.passes.direction(move.rule, index), move.part.states[index].growth
    if growth.ratio is not None:
        direction = direction * growth.ratio
    direction = move.part.whole(direction, index)
    step = direction.reshape(direction.shape[0], -1)
    start, iterations = growth.vector, 2
    if start is None:  # from nowhere it takes longer to find the dominant direction
        start, iterations = generic_vector(step), 18
    length, start = spectral_norm(step, start, iterations)
    if length > 0:  # a zero vector would never turn again
        growth.vector = start
    return length


def generic_vector(like: Tensor) -> Tensor:
    """A vector with no symmetry, the same for every model: a start for power iteration."""
    return torch.arange(1, like.shape[1] + 1, dtype=like.dtype, device=like.device).cos()


def make_room(growth: Growth, rate: Tensor, recurrence: Recurrence) -> None:
    """Find how much the next step may change what a matrix does over all its uses.

    The room shrinks at once as the rate rises, and grows slowly. A correction may have taken a net
    far below the cap, and steps that fill this room would pass the cap before the next look.
    """
    gain = recurrence.gain if isinstance(recurrence.gain, float) else float(recurrence.gain.amax())
    peak, uses = growth.peak, growth.uses
    if rate.is_cpu:
        log = uses * math.log(max(float(rate), 1e-30))
        growth.peak = new = log if peak is None else max(log, float(peak) - RELEASE)
        growth.room = (LEAST_ROOM + uses * max(0.0, 1 - math.exp(min(new / uses, 0.0)))) / gain
        return
    there = rate.clamp(min=1e-30).log() * uses
    growth.peak = there if peak is None else there.clamp(min=peak - RELEASE)
    room = (LEAST_ROOM + uses * (1 - (growth.peak / uses).exp()).clamp(min=0)) / gain
    known = growth.room  # a captured step reads the room where it lies
    growth.room = known.copy_(room) if isinstance(known, Tensor) else room

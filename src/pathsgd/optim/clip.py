"""What a bound leaves of the gradients (metric/bounds.py says which lengths there are)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pathsgd.metric.bounds import DualNorm, Length, length
from pathsgd.metric.gradients import clip_factor as factor_of
from pathsgd.optim.parts import Part, whitening_of
from pathsgd.optim.shards import adder


def clip_factor(
    squares: Sequence[float], parts: Sequence[Part], clip: DualNorm | Length | None, constant: float
) -> tuple[float | None, float]:
    """The dual norm, and what clipping leaves of the gradients, 0 to skip the step; None where it is not bounded.

    squares: squared lengths of the whitened gradients. constant: what the direction is multiplied by.
    """
    if isinstance(clip, DualNorm):
        norm = math.sqrt(constant * sum(squares))
        return norm, factor_of(norm, clip.limit)
    if isinstance(clip, Length):
        return None, factor_of(constant * length(directions(parts), adder(parts)), clip.limit)
    return None, 1.0


def directions(parts: Sequence[Part]) -> list[Tensor]:
    """grad / K of every parameter, in float64: 1/K may leave the range of a narrower type."""
    return [
        gradient.double() * whitening_of(state).double().square()
        for part in parts
        for gradient, state in zip(part.gradients(), part.states)
    ]

"""How far a step goes: the unit of the paper's direction, and the two lengths that can be bounded.

    direction     d = c * grad / K        c = 1, or |grad| / |grad / kappa| of the first step
    dual norm     sqrt(<grad, d>)         the same for every rescaling of the units, up to c
    length        |d|                     changes with the scaling of the units, as |grad| does

The paper's rule has no unit of its own: kappa may be 1e-6 or 1e+6, and the rate at which the rule
learns changes with it. With `scale="sgd"` the first step is as long as SGD's, so SGD's rates fit; c
is measured once and then kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathsgd.metric.choice import Metric, PaperMetric

Scale = Literal["kappa", "sgd"]


@dataclass(frozen=True)
class _Bound:
    limit: float

    def __post_init__(self) -> None:
        if isinstance(self.limit, str) or not 0 < self.limit < math.inf:
            raise ValueError(
                f"clip must be positive and finite, got {self.limit!r}; None for no bound"
            )


class DualNorm(_Bound):
    """A bound on the dual norm of the gradient, sqrt(<grad, direction>), invariant under rescaling.

    limit: the largest dual norm that stays as it is.
    """


class Length(_Bound):
    """A bound on the Euclidean length of the direction, as `clip_grad_norm_` would; not invariant.

    limit: the largest length that stays as it is.
    """


Clip = float | DualNorm | None
"""A number bounds the dual norm, or the length under the paper's metric; None: no bound."""


def bound_of(clip: Clip, metric: Metric | PaperMetric) -> DualNorm | Length | None:
    """What a clip bounds under a metric."""
    if clip is None or isinstance(clip, DualNorm):
        return clip
    return Length(clip) if metric.numbers_clip_length else DualNorm(clip)


def clip_factor(norm: float, limit: float | None) -> float:
    """min(1, limit / norm); 0 for a norm that is not finite, so one bad batch moves nothing."""
    if limit is None:
        return 1.0
    if not math.isfinite(norm):
        return 0.0
    return 1.0 if norm <= limit else limit / norm


def length(vectors: Sequence[Tensor], summed: Callable[[Tensor], Tensor] | None = None) -> float:
    """Euclidean length of all tensors together, in float64.

    summed: adds up one number for each tensor over the processes that hold other parts of it.
    """
    if not vectors:
        return 0.0
    lengths = torch.stack([torch.linalg.vector_norm(v.double()).cpu() for v in vectors])
    return float(lengths.norm() if summed is None else summed(lengths.square()).sum().sqrt())


def sgd_constant(
    gradients: Sequence[Tensor],
    directions: Sequence[Tensor],
    summed: Callable[[Tensor], Tensor] | None = None,
) -> float | None:
    """|grad| / |grad / kappa|; None where that is no number, and the next step must find it."""
    long, short = length(gradients, summed), length(directions, summed)
    return long / short if 0 < short < math.inf and 0 < long < math.inf else None

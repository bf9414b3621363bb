"""The bound on the dual norm of the gradient, sqrt(sum u^2), u = grad / sqrt(K), which rescaling does not change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathsgd.metric.gradients import clip_factor as factor_of


def clip_factor(squares: Sequence[float], clip: float | None) -> tuple[float | None, float]:
    """The dual norm, and what clipping leaves of the gradients, 0 to skip the step. None and 1 where clip is None.

    squares: squared lengths of the whitened gradients.
    """
    if clip is None:
        return None, 1.0
    norm = math.sqrt(sum(squares))
    return norm, factor_of(norm, clip)

"""Which metric an update steps in: one choice, every value of which makes sense.

    "paper"      K = kappa, for every parameter. The paper's rule, p <- p - lr * grad / kappa.
    "relative"   K = kappa / gamma^2 / (phi_s phi_d)^(rho/2), rho = 1. A rate is a share: every matrix moves by that
                 fraction of itself, however large it has become.
    "absolute"   K of the same shape, its size that of the first measurement. Rates are in units of the weights, as
                 Adam's and SGD's are: a step's share falls by itself when weights grow (absolute.py). The default.

phi is path flow, the share of all path mass that passes through a unit; s and d are the units an edge joins. rho = 0
weighs nothing by flow, rho = 1 is Euclidean in balanced coordinates; `Metric(rho=...)` chooses another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """An invariant metric: kappa / gamma^2, divided by path flow to the power rho / 2 on both sides of an edge.

    rho: between 0 (kappa's own shape) and 1 (Euclidean in balanced coordinates); any finite number >= 0.
    absolute: the size of the metric is that of the first measurement, instead of following the weights.
    """

    rho: float = 1.0
    absolute: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rho < math.inf:
            raise ValueError(f"rho must be finite and not negative, got {self.rho}")


@dataclass(frozen=True)
class PaperMetric:
    """kappa itself, as the paper prints it."""


MetricChoice = Literal["paper", "relative", "absolute"] | Metric | PaperMetric

PAPER = PaperMetric()
NAMED: dict[str, Metric | PaperMetric] = {
    "paper": PAPER,
    "relative": Metric(),
    "absolute": Metric(absolute=True),
}


def chosen(metric: MetricChoice) -> Metric | PaperMetric:
    """The metric of a name, or the metric itself."""
    if isinstance(metric, (Metric, PaperMetric)):
        return metric
    if not isinstance(metric, str) or metric not in NAMED:
        raise ValueError(
            f"metric must be one of {', '.join(map(repr, NAMED))} or a pathsgd.Metric, got {metric!r}"
        )
    return NAMED[metric]

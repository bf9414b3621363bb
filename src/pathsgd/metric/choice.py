"""Which metric an update steps in: one choice, every value of which makes sense.

    "paper"      K = kappa, for every parameter. The paper's rule, p <- p - lr * grad / kappa.
    "relative"   K = kappa / gamma^2 / (phi_s phi_d)^(rho/2), rho = 1. A rate is a share: every
                 matrix moves by that fraction of itself, however large it has become.
    "absolute"   K of the same shape, its size that of the first measurement. Rates are in units of
                 the weights, as Adam's and SGD's are: a step's share falls when weights grow
                 (absolute.py). The default.

phi is path flow, the share of all path mass that passes through a unit; s and d are the units that
an edge joins. rho = 0 ignores flow, rho = 1 is Euclidean in balanced coordinates;
`Metric(rho=...)` chooses another.

Nothing else asks which metric it has: what depends on the choice is an attribute of both classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class Metric:
    """An invariant metric: kappa / gamma^2 over path flow^(rho / 2) at both ends of an edge.

    rho: between 0 (kappa's own shape) and 1 (Euclidean in balanced coordinates); finite and >= 0.
    absolute: its size is that of the first measurement, instead of following the weights.
    """

    rho: float = 1.0
    absolute: bool = False

    is_everywhere: ClassVar[bool] = False
    """Whether parameters that no rescaling changes have a metric other than 1."""
    unit: ClassVar[float] = 0.0
    """The power of gamma^2 in which K is counted."""
    bounds_biases: ClassVar[bool] = True
    """Whether biases are kept from running ahead of their weights (biases.py)."""
    bounds_growth: ClassVar[bool] = True
    """Whether growth is bounded by default, and steps by the room that it leaves."""
    whitens_moments: ClassVar[bool] = True
    """Whether Adam's direction is whitened a second time; else its input is."""
    usual_clip: ClassVar[float | None] = 1.0
    numbers_clip_length: ClassVar[bool] = False
    """Whether clip=1.0 bounds the length of a direction instead of the dual norm."""
    adam: ClassVar[tuple[float, tuple[float, float]]] = 3e-3, (0.9, 0.99)
    """PathAdam's default learning rate and betas."""

    def __post_init__(self) -> None:
        if not 0 <= self.rho < math.inf:
            raise ValueError(f"rho must be finite and not negative, got {self.rho}")

    @property
    def keeps_size(self) -> bool:
        """Whether the size of the first measurement is kept."""
        return self.absolute


@dataclass(frozen=True)
class PaperMetric:
    """kappa itself, as the paper prints it."""

    rho: ClassVar[float] = 0.0
    is_everywhere: ClassVar[bool] = True
    unit: ClassVar[float] = 1.0
    bounds_biases: ClassVar[bool] = False
    bounds_growth: ClassVar[bool] = False
    whitens_moments: ClassVar[bool] = False
    usual_clip: ClassVar[float | None] = None
    numbers_clip_length: ClassVar[bool] = True
    adam: ClassVar[tuple[float, tuple[float, float]]] = 1e-3, (0.9, 0.999)
    keeps_size: ClassVar[bool] = False


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
        names = ", ".join(map(repr, NAMED))
        raise ValueError(f"metric must be one of {names} or a pathsgd.Metric, got {metric!r}")
    return NAMED[metric]


def without_memory(metric: MetricChoice) -> Metric | PaperMetric:
    """The metric, refused if it needs to remember its first measurement."""
    metric = chosen(metric)
    if metric.keeps_size:
        raise ValueError(
            "the absolute metric remembers its first measurement, which a gradient in place "
            "cannot; use PathSGD or PathAdam for it"
        )
    return metric


def with_coordinates(metric: MetricChoice, advice: str = "") -> Metric | PaperMetric:
    """The metric, refused if it is the paper's, which has no coordinates to step in."""
    metric = chosen(metric)
    if metric.is_everywhere:
        raise ValueError(f"the paper's metric has no coordinates: use metric='absolute'{advice}")
    return metric


def check_scale(scale: Any, metric: Metric | PaperMetric) -> None:
    """Refuse a scale that does not exist, or that would change nothing."""
    if scale not in ("kappa", "sgd"):
        raise ValueError(f"scale must be 'kappa' or 'sgd', got {scale!r}")
    if scale == "sgd" and not metric.unit:
        raise ValueError(
            "scale='sgd' is a unit for the paper's metric; the others have units of their own"
        )

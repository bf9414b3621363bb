"""Adam with a fixed bound on steps: only its records are left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.optimisers.retired import RetiredOptimiser
from pathsgd_lab.run.optimisers.standard import AdamOptimiser


@dataclass(frozen=True)
class StepBoundAdamOptimiser(RetiredOptimiser, AdamOptimiser):
    """Adam with a bound on how much a step changed what the recurrent matrix does."""

    name: ClassVar[str] = "adam-step-bound"
    title: ClassVar[str] = "Adam, bound on steps"

    step_growth: float = 0.3
    """The bound, as a log factor over all steps."""


OPTIMISERS[StepBoundAdamOptimiser.name] = StepBoundAdamOptimiser

"""A study: PathAdam in relative units whose steps do not grow with the net.

Relative steps are in proportion to the weights, so that at a high rate growth feeds on itself:
larger weights, larger steps.  The weights' size, as far as the function sees it, is gamma^(1/L) for
paths of L weights:

    rate <- rate * min(1, (gamma_0 / gamma)^(1/L))    gamma_0: at the first step
    L = 1/2 sum_p p . d log gamma^2 / dp              mean number of weights on a path (Euler)

Neither gamma nor L changes when units are rescaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import pathsgd
from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.optimisers.base import GradientStepper
from pathsgd_lab.run.optimisers.path import RelativePathAdamOptimiser
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.tasks import Batch, State, Task

LOOK_EVERY = 5
"""Steps between two measurements of gamma."""


def path_length(model: nn.Module, *inputs: Any) -> float:
    """L: mean number of weights on a path, each path counted by its share of gamma^2."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    log_gamma_sq = pathsgd.log_gamma_sq(model, *inputs, output=0)
    slopes = torch.autograd.grad(log_gamma_sq, parameters, allow_unused=True)
    return 0.5 * sum(
        float((p.detach() * slope).sum())
        for p, slope in zip(parameters, slopes)
        if slope is not None
    )


class CappedStepper(GradientStepper):
    """Steps whose rate falls as gamma rises above its first value."""

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        group = self.optimiser.param_groups[0]
        # In the group, where a checkpoint keeps it.
        if "cap_start" not in group:
            group["cap_start"], group["cap_steps"] = self._log_gamma_sq(), 0
            group["cap_length"] = path_length(self.model, self.task.example_inputs())
        if group["cap_steps"] % LOOK_EVERY == 0:
            grown = self._log_gamma_sq() - group["cap_start"]
            group["cap"] = math.exp(-max(0.0, grown) / (2.0 * max(1.0, group["cap_length"])))
        group["cap_steps"] += 1
        rate = group["lr"]
        group["lr"] = rate * group["cap"]
        try:
            return super().step(batch, state)
        finally:
            group["lr"] = rate

    def _log_gamma_sq(self) -> float:
        with torch.no_grad():
            return float(pathsgd.log_gamma_sq(self.model, self.task.example_inputs(), output=0))


@dataclass(frozen=True)
class CappedPathAdamOptimiser(RelativePathAdamOptimiser):
    """PathAdam whose relative steps do not grow with gamma: a study."""

    name: ClassVar[str] = "path-adam-capped"
    title: ClassVar[str] = "PathAdam, steps capped by gamma"

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """As PathAdam's, with the cap."""
        plain = super().stepper(system, model, task)
        return CappedStepper(system, model, task, plain.optimiser, clip=0.0)


OPTIMISERS[CappedPathAdamOptimiser.name] = CappedPathAdamOptimiser

"""torch's own optimisers, with the gradient clipped before the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.tasks import Batch, State, Task


@dataclass(frozen=True)
class SgdOptimiser(GradientOptimiser):
    """Stochastic gradient descent."""

    name: ClassVar[str] = "sgd"
    title: ClassVar[str] = "SGD"

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    momentum: float = 0.0
    """Share of the last step kept in the next."""
    nesterov: bool = False
    """Nesterov's momentum."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.SGD:
        """torch's SGD."""
        # One fused pass over all parameters: at H = 100 the separate small operations are a visible part of a step.
        return torch.optim.SGD(
            model.parameters(),
            self.lr,
            self.momentum,
            0.0,
            self.weight_decay,
            self.nesterov,
            fused=True,
        )


@dataclass(frozen=True)
class AdamOptimiser(GradientOptimiser):
    """Adam (Kingma and Ba, 2014)."""

    name: ClassVar[str] = "adam"
    title: ClassVar[str] = "Adam"

    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: float = 1e-8
    """Added to the root of the mean square."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Adam:
        """torch's Adam."""
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(
            model.parameters(), self.lr, betas, self.epsilon, self.weight_decay, fused=True
        )


class BoundedStepper(GradientStepper):
    """Steps that change what the recurrent matrix does over T steps of time by a log factor of at most ``step_growth``.

    The bound that PathAdam had on single steps, in plain coordinates: T |D|_2 <= step_growth for the change D of W_rec.
    """

    def __init__(self, *arguments: Any, step_growth: float) -> None:
        super().__init__(*arguments)
        self.step_growth = step_growth
        names = [name for name in RECURRENT if name in dict(self.model.named_parameters())]
        self.recurrent = [self.model.get_parameter(name) for name in names]

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        before = [p.detach().clone() for p in self.parameters]
        starts = {id(p): start for p, start in zip(self.parameters, before, strict=True)}
        result = super().step(batch, state)
        with torch.no_grad():
            for p in self.recurrent:
                grown = len(batch.inputs) * float(torch.linalg.matrix_norm(p - starts[id(p)], 2))
                if grown > self.step_growth:
                    for q, start in zip(self.parameters, before, strict=True):
                        q.copy_(torch.lerp(start, q, self.step_growth / grown))
        return result


RECURRENT = ("rnn.weight_hh_l0", "recurrent.weight")
"""The recurrent matrices of the lab's nets."""


@dataclass(frozen=True)
class StepBoundAdamOptimiser(AdamOptimiser):
    """Adam with a bound on how much a step changes what the recurrent matrix does."""

    name: ClassVar[str] = "adam-step-bound"
    title: ClassVar[str] = "Adam, bound on steps"

    step_growth: float = 0.3
    """Bound on how much a step changes what the recurrent matrix does over all steps, as a log factor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.step_growth > 0.0:
            raise ValueError(
                f"step_growth must be positive, got {self.step_growth}; for no bound choose adam"
            )

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Clip the Euclidean norm, step, and take back what exceeds the bound."""
        optimiser = self.make(model, task)
        return BoundedStepper(
            system,
            model,
            task,
            optimiser,
            self.clip,
            self.growth_limit,
            step_growth=self.step_growth,
        )


@dataclass(frozen=True)
class RmsPropOptimiser(GradientOptimiser):
    """RMSprop (Tieleman and Hinton, 2012)."""

    name: ClassVar[str] = "rmsprop"
    title: ClassVar[str] = "RMSprop"

    alpha: float = 0.9
    """Decay of the mean of squared gradients."""
    momentum: float = 0.0
    """Share of the last step kept in the next."""
    epsilon: float = 1e-8
    """Added to the root of the mean square."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.RMSprop:
        """torch's RMSprop."""
        return torch.optim.RMSprop(
            model.parameters(), self.lr, self.alpha, self.epsilon, self.weight_decay, self.momentum
        )

"""What an optimiser of the lab is: frozen settings, and one training step with them.

Optimiser (frozen settings) --stepper(system, model, task)--> Stepper --step(batch, state)--> loss,
state
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd.optim import bound_growth_
from pathsgd_lab.run.together import Together
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.tasks import Batch, State, Task, detach_state
from pathsgd_lab.tasks.text import TextTask


class Stepper(ABC):
    """One optimiser bound to one model."""

    optimiser: torch.optim.Optimizer

    @abstractmethod
    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """Take one step; the loss before it (0-d) and the state after the batch, detached."""

    def judged(self) -> contextlib.AbstractContextManager[None]:
        """While active, the model holds the parameters to evaluate: an average, for some."""
        return contextlib.nullcontext()

    @abstractmethod
    def scale_rate(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the one the optimiser was made with."""


def clip_gradients_(parameters: Sequence[Tensor], limit: float) -> None:
    """Bound the norm of all gradients together; unlike torch's clip, never turn one into zero.

    Where the squares of a finite gradient leave the range of its dtype, torch's norm is infinite
    and its clip makes the
    gradient zero: a net whose states have grown far would stand where it is for ever.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    largest = max(float(g.abs().max()) for g in gradients) if norm.isinf() else math.inf
    if math.isfinite(largest):
        shares = [g.div_(largest) for g in gradients]
        factor = limit / nn.utils.get_total_norm(shares)
        for g in shares:
            g.mul_(factor)
    else:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)


class GradientStepper(Stepper):
    """Forward, backward, clip, step."""

    def __init__(
        self,
        system: System,
        model: SequenceNet,
        task: Task,
        optimiser: torch.optim.Optimizer,
        clip: float,
        growth_limit: float = 0.0,
    ) -> None:
        self.system, self.model, self.task, self.optimiser, self.clip = (
            system,
            model,
            task,
            optimiser,
            clip,
        )
        self.growth_limit, self.together = growth_limit, Together()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._rates = [float(group["lr"]) for group in optimiser.param_groups]

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        losses = self.system.losses(self.model, self.task, batch, state)
        for p in self.parameters:
            p.grad = None
        losses.objective.backward()
        loss = self.together.averaged(losses.loss.detach(), self.parameters)
        if self.clip > 0.0:
            clip_gradients_(self.parameters, self.clip)
        self.optimiser.step()
        if self.growth_limit > 0.0:
            # The state that text carries from window to window is no input of the network.
            inputs = self.task.example_inputs() if isinstance(self.task, TextTask) else batch.inputs
            bound_growth_(
                self.model, inputs, limit=self.growth_limit, state=self.optimiser.state, output=0
            )
        return loss, detach_state(losses.state)

    def scale_rate(self, factor: float) -> None:
        """See ``Stepper``."""
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = factor * rate


@dataclass(frozen=True)
class Optimiser(ABC):
    """Settings of an optimiser."""

    name: ClassVar[str]
    """Key in ``OPTIMISERS`` and on the command line."""
    title: ClassVar[str]
    """Name in tables and figures."""
    needs_paths: ClassVar[bool] = False
    """True where the model must be made of parts that carry paths."""

    only_for: ClassVar[str | None] = None
    """The one system that the optimiser is defined for; None: any."""

    @abstractmethod
    def stepper(self, system: System, model: SequenceNet, task: Task) -> Stepper:
        """Bind these settings to a model."""


@dataclass(frozen=True)
class GradientOptimiser(Optimiser):
    """What all optimisers that step along a gradient have."""

    lr: float = 1e-3
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    clip: float = 1.0
    """Bound on the norm of the gradient; 0: none."""
    weight_decay: float = 0.0
    """Factor of the parameters added to their gradient."""
    growth_limit: float = 0.0
    """Bound on the growth rate of recurrent matrices, as uses * log(rate), kept after every step;
    0: none."""

    def __post_init__(self) -> None:
        if not self.lr > 0.0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.clip < 0.0 or self.weight_decay < 0.0 or self.growth_limit < 0.0:
            raise ValueError("clip, weight_decay and growth_limit cannot be negative")

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Clip the Euclidean norm, then step."""
        return GradientStepper(
            system, model, task, self.make(model, task), self.clip, self.growth_limit
        )

    @abstractmethod
    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The torch optimiser."""

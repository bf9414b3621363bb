"""torch's own optimisers, with the gradient clipped before the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pathsgd_lab.run.optimisers.base import GradientOptimiser
from pathsgd_lab.systems import SequenceNet
from pathsgd_lab.tasks import Task


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
        # One fused pass over all parameters: at H = 100 separate small operations are a visible
        # part of a step.
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

"""The path optimisers: the lab's settings as arguments of ``PathSGD`` and ``PathAdam``.

``clip`` bounds the dual norm of the gradient, sum grad^2 / kappa, which node-wise rescaling leaves
alone.  ``path-adam`` at its defaults is ``pathsgd.PathAdam(model)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch.optim import Optimizer

import pathsgd
import pathsgd.optim
from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.tasks import Task
from pathsgd_lab.tasks.text import TextTask

Metric = Literal["paper"] | pathsgd.Metric


@dataclass(frozen=True)
class PathOptimiser(GradientOptimiser):
    """What the path optimisers share; they clip the dual norm themselves."""

    needs_paths: ClassVar[bool] = True

    clip: float = 1.0
    """Bound on the dual norm of the gradient; 0: none."""
    weight_decay: float = 0.0
    """Share of each parameter taken away per unit of learning rate."""
    growth_limit: float = 3.0
    """Bound on the growth rate of recurrent matrices, as uses * log(rate); 0: none."""
    refresh_every: int = 10
    """Steps for which kappa is used before it is measured anew."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Step without a clip of the Euclidean norm."""
        return GradientStepper(system, model, task, self.make(model, task), clip=0.0)

    def shared(self, task: Task, metric: Metric) -> dict[str, Any]:
        """Arguments that all path optimisers take."""
        return {
            "metric": metric,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "clip": pathsgd.optim.DualNorm(self.clip) if self.clip else None,
            "growth": self.growth_limit or None,
            "refresh_every": self.refresh_every,
            "output": 0,
            # The state that text carries on is no input of the network.  Whole sequences may change
            # their length: the last forward pass says it.
            "example_inputs": task.example_inputs() if isinstance(task, TextTask) else None,
        }


@dataclass(frozen=True)
class PathSgdOptimiser(PathOptimiser):
    """Path-SGD with the first term of kappa.

    rho, clip and growth_limit 0 make the paper's p <- p - lr grad / kappa1; with unit sgd clip
    bounds its length.
    """

    name: ClassVar[str] = "path-sgd"
    title: ClassVar[str] = "Path-SGD"
    terms: ClassVar[Literal["first", "both"]] = "first"

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    momentum: float = 0.0
    """Share of the last step kept in the next, in path coordinates."""
    nesterov: bool = False
    """Nesterov's momentum."""
    rho: float = 1.0
    """Balance of the metric: 0 is the paper's, 1 is Euclidean in balanced coordinates."""
    unit: Literal["kappa", "sgd"] = "kappa"
    """sgd: the paper's rule times one constant that makes its first step as long as SGD's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit == "sgd" and self.rho:
            raise ValueError("unit sgd belongs to the paper's rule: set rho to 0")

    def make(self, model: SequenceNet, task: Task) -> Optimizer:
        """PathSGD on the model."""
        is_paper = self.rho == 0.0 and (self.clip == 0.0 or self.unit == "sgd")
        arguments = self.shared(task, "paper" if is_paper else pathsgd.Metric(self.rho))
        if self.unit == "sgd":
            arguments |= {"scale": "sgd", "clip": self.clip or None}
        return self.sgd(model, arguments)

    def sgd(self, model: SequenceNet, arguments: dict[str, Any]) -> Optimizer:
        """PathSGD with its momentum."""
        return pathsgd.PathSGD(
            model, momentum=self.momentum, nesterov=self.nesterov, terms=self.terms, **arguments
        )


@dataclass(frozen=True)
class AbsolutePathSgdOptimiser(PathSgdOptimiser):
    """Path-SGD with rates in units of the weights, as SGD's are."""

    name: ClassVar[str] = "path-sgd-absolute"
    title: ClassVar[str] = "Path-SGD, absolute"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit != "kappa":
            raise ValueError("unit belongs to the paper's rule: name the optimiser path-sgd")

    def make(self, model: SequenceNet, task: Task) -> Optimizer:
        """PathSGD on the model."""
        return self.sgd(model, self.shared(task, pathsgd.Metric(self.rho, absolute=True)))


@dataclass(frozen=True)
class PathSgdBothOptimiser(PathSgdOptimiser):
    """Path-SGD with both terms of kappa, kappa1 + kappa2."""

    name: ClassVar[str] = "path-sgd-both"
    title: ClassVar[str] = "Path-SGD, both terms"
    terms: ClassVar[Literal["first", "both"]] = "both"


@dataclass(frozen=True)
class PathAdamBase(PathOptimiser):
    """Adam in path geometry."""

    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.99
    """Decay of the mean of squared gradients."""
    epsilon: float = 1e-8
    """Added to the root of the mean square."""

    def adam(self, model: SequenceNet, task: Task, metric: Metric) -> Optimizer:
        """PathAdam in one of its metrics."""
        betas = (self.beta1, self.beta2)
        return pathsgd.PathAdam(model, betas=betas, eps=self.epsilon, **self.shared(task, metric))


@dataclass(frozen=True)
class RelativePathAdamOptimiser(PathAdamBase):
    """PathAdam with rates relative to the size of the weights."""

    name: ClassVar[str] = "path-adam-relative"
    title: ClassVar[str] = "PathAdam, relative"

    rho: float = 1.0
    """Balance of the metric: 0 is the paper's, 1 is Euclidean in balanced coordinates."""

    def make(self, model: SequenceNet, task: Task) -> Optimizer:
        """The invariant form."""
        return self.adam(model, task, pathsgd.Metric(self.rho))


@dataclass(frozen=True)
class PathAdamOptimiser(RelativePathAdamOptimiser):
    """The library's PathAdam: Adam on grad / sqrt(kappa), stepping by 1 / sqrt(kappa)."""

    name: ClassVar[str] = "path-adam"
    title: ClassVar[str] = "PathAdam, absolute"

    lr: float = 3e-3
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    refresh_every: int = 1
    """Steps for which kappa is used before it is measured anew."""

    def make(self, model: SequenceNet, task: Task) -> Optimizer:
        """The invariant form."""
        return self.adam(model, task, pathsgd.Metric(self.rho, absolute=True))


@dataclass(frozen=True)
class PaperPathAdamOptimiser(PathAdamBase):
    """Adam fed with grad / kappa1, as the paper does on text: not invariant."""

    name: ClassVar[str] = "path-adam-paper"
    title: ClassVar[str] = "Path-Adam (paper)"

    growth_limit: float = 0.0
    """Bound on the growth rate of recurrent matrices; 0: none, as in the paper."""

    def make(self, model: SequenceNet, task: Task) -> Optimizer:
        """The paper's form."""
        return self.adam(model, task, "paper")

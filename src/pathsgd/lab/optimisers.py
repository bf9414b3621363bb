"""The optimisers a run can name, each a frozen dataclass of settings, and one training step with any of them.

    Optimiser (frozen settings) --stepper(system, model, task)--> Stepper --step(batch, state)--> loss, state

A new optimiser is one class here and one line in ``OPTIMISERS``.  ``clip`` bounds the norm of the gradient; for the
path optimisers that norm is the dual one, sum grad^2 / kappa, which node-wise rescaling leaves alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.lab.readings import Bound, PaperPathSGD, Reading, Scale
from pathsgd.lab.systems import HessianFree, SequenceNet, System
from pathsgd.lab.systems.plain import RecurrentNet
from pathsgd.lab.tasks import Batch, State, Task, detach_state
from pathsgd.lab.tasks.text import TextTask


class Stepper(ABC):
    """One optimiser bound to one model."""

    optimiser: torch.optim.Optimizer

    @abstractmethod
    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """Change the parameters once; the loss before the change (0-d) and the state after the batch, detached."""

    @abstractmethod
    def scale_rate(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the one the optimiser was made with."""


class GradientStepper(Stepper):
    """Forward, backward, clip, step."""

    def __init__(
        self, system: System, model: SequenceNet, task: Task, optimiser: torch.optim.Optimizer, clip: float
    ) -> None:
        self.system, self.model, self.task, self.optimiser, self.clip = system, model, task, optimiser, clip
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._rates = [float(group["lr"]) for group in optimiser.param_groups]

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        losses = self.system.losses(self.model, self.task, batch, state)
        for p in self.parameters:
            p.grad = None
        losses.objective.backward()
        if self.clip > 0.0:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimiser.step()
        return losses.loss.detach(), detach_state(losses.state)

    def scale_rate(self, factor: float) -> None:
        """See ``Stepper``."""
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = factor * rate


class HessianFreeStepper(Stepper):
    """The optimiser makes its own passes over the batch."""

    def __init__(self, optimiser: HessianFree) -> None:
        self.optimiser: HessianFree = optimiser

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        losses = self.optimiser.step(batch, state)
        return losses.loss, losses.state

    def scale_rate(self, factor: float) -> None:
        """Hessian-free steps have no rate; their length is found by a line search."""


@dataclass(frozen=True)
class Optimiser(ABC):
    """Settings of an optimiser."""

    name: ClassVar[str]
    """Key in ``OPTIMISERS`` and on the command line."""
    title: ClassVar[str]
    """Name in tables and figures."""
    needs_paths: ClassVar[bool] = False
    """True where the model must be made of parts that carry paths."""

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

    def __post_init__(self) -> None:
        if not self.lr > 0.0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.clip < 0.0 or self.weight_decay < 0.0:
            raise ValueError("clip and weight_decay cannot be negative")

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Clip the Euclidean norm, then step."""
        return GradientStepper(system, model, task, self.make(model, task), self.clip)

    @abstractmethod
    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The torch optimiser."""


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
            model.parameters(), self.lr, self.momentum, 0.0, self.weight_decay, self.nesterov, fused=True
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
        return torch.optim.Adam(model.parameters(), self.lr, betas, self.epsilon, self.weight_decay, fused=True)


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


@dataclass(frozen=True)
class PathOptimiser(GradientOptimiser):
    """What the path optimisers share; they clip the dual norm themselves."""

    needs_paths: ClassVar[bool] = True

    clip: float = 1.0
    """Bound on the dual norm of the gradient, which node-wise rescaling leaves alone; 0: none."""
    weight_decay: float = 0.0
    """Share of each parameter taken away per unit of learning rate."""
    step_growth: float = 0.3
    """Bound on how much a step changes what the recurrent matrix does over all steps, as a log factor; 0: none."""
    refresh_every: int = 10
    """Steps for which kappa is used before it is measured anew."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Step without a clip of the Euclidean norm."""
        return GradientStepper(system, model, task, self.make(model, task), clip=0.0)

    def shared(self, task: Task) -> dict[str, Any]:
        """Arguments that all path optimisers take."""
        return {
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "clip": self.clip or None,
            "growth": self.step_growth or None,
            "refresh_every": self.refresh_every,
            "output": 0,
            # The state that text carries from window to window is no input of the network; where sequences are whole,
            # their length may change and is learnt from the last forward pass.
            "example_inputs": task.example_inputs() if isinstance(task, TextTask) else None,
        }


@dataclass(frozen=True)
class PathSgdOptimiser(PathOptimiser):
    """Path-SGD with the first term of kappa; rho, clip and step_growth 0 make the paper's p <- p - lr grad / kappa1."""

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

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """PathSGD on the model."""
        return pathsgd.PathSGD(
            model,
            momentum=self.momentum,
            nesterov=self.nesterov,
            rho=self.rho,
            terms=self.terms,
            **self.shared(task),
        )


@dataclass(frozen=True)
class PathSgdBothOptimiser(PathSgdOptimiser):
    """Path-SGD with both terms of kappa, kappa1 + kappa2."""

    name: ClassVar[str] = "path-sgd-both"
    title: ClassVar[str] = "Path-SGD, both terms"
    terms: ClassVar[Literal["first", "both"]] = "both"


class PaperPathSgdStepper(GradientStepper):
    """Tells the optimiser how long the sequences are."""

    optimiser: PaperPathSGD

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        self.optimiser.steps = len(batch.inputs)
        return super().step(batch, state)


@dataclass(frozen=True)
class PaperPathSgdOptimiser(GradientOptimiser):
    """The paper's Path-SGD, grad / kappa, in every way its text can be read (lab/readings.py)."""

    name: ClassVar[str] = "path-sgd-paper"
    title: ClassVar[str] = "Path-SGD (paper)"
    needs_paths: ClassVar[bool] = True

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    clip: float = 1.0
    """Bound on what ``clip_on`` names; 0: none."""
    clip_on: Bound = "direction"
    """What is bounded: the length of the direction after scaling, of the gradient before, or the dual norm."""
    scale: Scale = "sgd"
    """sgd: one constant makes the first direction as long as the gradient; kappa: grad / kappa as it is."""
    initial_state: bool = False
    """Count the paths that begin at the units at time 0."""
    every_output: bool = False
    """Count the outputs of every step, not of the last one alone."""
    biases: bool = True
    """Train biases; False: they stay at 0."""
    both_terms: bool = False
    """kappa1 + kappa2 instead of kappa1."""
    momentum: float = 0.0
    """Share of the last step kept in the next."""
    refresh_every: int = 1
    """Steps for which kappa is used before it is measured anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise ValueError("path-sgd-paper has no weight decay: the paper has none")

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """The optimiser bounds its own steps."""
        return PaperPathSgdStepper(system, model, task, self.make(model, task), clip=0.0)

    def make(self, model: SequenceNet, task: Task) -> PaperPathSGD:
        """The rule on a plain net."""
        if not isinstance(model, RecurrentNet):
            raise ValueError("path-sgd-paper is for one-layer ReLU nets (rnn_path, irnn, rnn_relu, np_rnn)")
        reading = Reading(self.initial_state, self.every_output, self.biases, self.both_terms)
        return PaperPathSGD(
            model, self.lr, reading, self.scale, self.clip, self.clip_on, self.momentum, self.refresh_every
        )


@dataclass(frozen=True)
class PathAdamBase(PathOptimiser):
    """Adam in path geometry."""

    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.99
    """Decay of the mean of squared gradients."""
    epsilon: float = 1e-8
    """Added to the root of the mean square."""

    def adam(self, model: SequenceNet, task: Task, **geometry: Any) -> torch.optim.Optimizer:
        """PathAdam in one of its geometries."""
        betas = (self.beta1, self.beta2)
        return pathsgd.PathAdam(model, betas=betas, eps=self.epsilon, **geometry, **self.shared(task))


@dataclass(frozen=True)
class PathAdamOptimiser(PathAdamBase):
    """Adam on grad / sqrt(kappa), stepping by 1 / sqrt(kappa): invariant under node-wise rescaling."""

    name: ClassVar[str] = "path-adam"
    title: ClassVar[str] = "PathAdam"

    rho: float = 1.0
    """Balance of the metric: 0 is the paper's, 1 is Euclidean in balanced coordinates."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The invariant form."""
        return self.adam(model, task, geometry="invariant", rho=self.rho)


@dataclass(frozen=True)
class AbsolutePathAdamOptimiser(PathAdamOptimiser):
    """PathAdam with rates in units of the weights, as Adam's are."""

    name: ClassVar[str] = "path-adam-absolute"
    title: ClassVar[str] = "PathAdam, absolute"

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The invariant form."""
        return self.adam(model, task, geometry="invariant", rho=self.rho, absolute=True)


@dataclass(frozen=True)
class PaperPathAdamOptimiser(PathAdamBase):
    """Adam fed with grad / kappa1, as the paper does on text: not invariant."""

    name: ClassVar[str] = "path-adam-paper"
    title: ClassVar[str] = "Path-Adam (paper)"

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The paper's form."""
        return self.adam(model, task, geometry="paper")


@dataclass(frozen=True)
class HessianFreeOptimiser(Optimiser):
    """Gauss-Newton steps by conjugate gradients (Martens, 2010), for nets unrolled step by step."""

    name: ClassVar[str] = "hessian-free"
    title: ClassVar[str] = "Hessian-free"

    damping: float = 1.0
    """First value of the damping."""
    structural: float = 1.0 / 30.0
    """Weight of the structural part of the damping."""
    cg_iterations: int = 100
    """Steps of conjugate gradients at most."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> HessianFreeStepper:
        """Bind to a model whose parts have forward-mode derivatives."""
        if any(isinstance(part, nn.RNNBase) for part in model.modules()):
            raise ValueError(f"hessian-free needs a net unrolled step by step (mrnn_hf), which {system.name} is not")
        return HessianFreeStepper(HessianFree(model, task.loss, self.damping, self.structural, self.cg_iterations))


OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SgdOptimiser,
    "adam": AdamOptimiser,
    "rmsprop": RmsPropOptimiser,
    "path-sgd": PathSgdOptimiser,
    "path-sgd-both": PathSgdBothOptimiser,
    "path-sgd-paper": PaperPathSgdOptimiser,
    "path-adam": PathAdamOptimiser,
    "path-adam-absolute": AbsolutePathAdamOptimiser,
    "path-adam-paper": PaperPathAdamOptimiser,
    "hessian-free": HessianFreeOptimiser,
}

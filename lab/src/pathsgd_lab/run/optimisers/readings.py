"""The paper's Path-SGD on a plain ReLU net, in every way its text can be read.

    D = c G / kappa      c = 1, or |G| / |G / kappa| of the first step, then as long as SGD's
    p <- p - lr D          G or D bounded in one of three ways

The paper leaves open which paths kappa counts and how far a step goes.  The readings:

    initial_state   the units at time 0 are input nodes, although their value is 0
    every_output    outputs of every step are output nodes, although the loss reads the last only
    biases          the net has biases; without them they stay at 0
    both            kappa1 + kappa2 instead of kappa1

`pathsgd.PathSGD` has one reading, which rescaling leaves alone and which follows the model: no
initial state, the outputs that the loss reads, the parameters there are.

Each reading is a net of its own over the same weights, ``ReadingNet``; kappa is the library's kappa
of that net.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

import pathsgd
from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.systems.plain import RecurrentNet
from pathsgd_lab.tasks import Batch, State, Task

Bound = Literal["direction", "gradient", "dual"]
Scale = Literal["kappa", "sgd"]


class Reading(NamedTuple):
    """Which paths count."""

    initial_state: bool = False
    every_output: bool = False
    biases: bool = True
    both: bool = False


class PlainWeights(NamedTuple):
    """The parameters of a one-layer net, in the order of all lists of this module."""

    w_in: Tensor
    w_rec: Tensor
    b_in: Tensor
    b_rec: Tensor
    w_out: Tensor
    b_out: Tensor

    @property
    def biases(self) -> tuple[Tensor, Tensor, Tensor]:
        """The biases of the units and of the outputs."""
        return self.b_in, self.b_rec, self.b_out

    @classmethod
    def of(cls, net: RecurrentNet) -> PlainWeights:
        """The weights of a net without a table of symbols."""
        if net.table is not None:
            raise ValueError(
                "the readings of the paper's rule are for nets with numbers as inputs, not symbols"
            )
        rnn, readout = net.rnn, net.readout
        return cls(
            rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0,
            readout.weight, readout.bias
        )  # fmt: skip


class ReadingNet(nn.Module):
    """The net of a reading: inputs (T, 1, I) and initial states (1, 1, H) to outputs."""

    def __init__(self, weights: PlainWeights, reading: Reading) -> None:
        super().__init__()
        self.reading = reading
        for name, weight in weights._asdict().items():
            self.register_parameter(name, nn.Parameter(weight.detach()))

    def forward(self, inputs: Tensor, initial: Tensor) -> Tensor:
        w, biased = PlainWeights(*self.parameters()), self.reading.biases
        # A state handed in as it is counts as a carried state, no input; a ReLU makes it a unit's
        # value.
        start = torch.relu(initial) if self.reading.initial_state else torch.zeros_like(initial)
        weights = w[:4] if biased else w[:2]
        states, _ = torch.rnn_relu(inputs, start, weights, biased, 1, 0.0, False, False, False)
        read = states if self.reading.every_output else states[-1]
        return nn.functional.linear(read, w.w_out, w.b_out if biased else None)


def kappas(weights: PlainWeights, steps: int, reading: Reading) -> PlainWeights:
    """kappa of every parameter under a reading, float64; 0 for biases that are left out."""
    units, inputs = weights.w_in.shape
    example = weights.w_in.new_zeros(steps, 1, inputs), weights.w_in.new_zeros(1, 1, units)
    terms: Literal["first", "both"] = "both" if reading.both else "first"
    return PlainWeights(**pathsgd.kappa(ReadingNet(weights, reading), *example, terms=terms))


def length(vectors: Sequence[Tensor]) -> float:
    """Euclidean length of all of them together."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(vectors)))))


class PaperPathSGD(torch.optim.Optimizer):
    """p <- p - lr D, with momentum on D as in torch.optim.SGD; see the top of this module.

    clip: bound on |D| ("direction"), on |G| before it is divided ("gradient") or on sqrt(<G, D>),
    the dual norm
    ("dual"); 0: none.  The constant of ``scale="sgd"`` is kept in the parameter group, and so in
    the state dict.
    """

    def __init__(
        self, net: RecurrentNet, lr: float, reading: Reading, scale: Scale, clip: float,
        clip_on: Bound,
        momentum: float = 0.0, refresh_every: int = 1,
    ) -> None:  # fmt: skip
        self.weights, self.reading = PlainWeights.of(net), reading
        self.clip, self.clip_on, self.refresh_every = clip, clip_on, refresh_every
        self.steps = 0
        """Length of the sequences of the last batch; whoever calls ``step`` sets it."""
        # In the group, not in the parameters' states: torch would load those in the parameters'
        # dtype.
        kept: dict[str, Any] = {"constant": 1.0 if scale == "kappa" else None, "age": 0}
        kept |= {"inverse": [], "buffers": []}
        super().__init__(list(self.weights), {"lr": lr, "momentum": momentum, **kept})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients as they are."""
        group = self.param_groups[0]
        gradients = [p.grad.double() for p in self.weights]  # type: ignore[union-attr]
        if not self.reading.biases:
            for gradient in PlainWeights(*gradients).biases:
                gradient.zero_()
        self._refresh(group)
        if self.clip and self.clip_on == "gradient":
            torch._foreach_mul_(gradients, _factor(length(gradients), self.clip))
        direction = torch._foreach_mul(gradients, group["inverse"])
        if group["constant"] is None:
            group["constant"] = length(gradients) / length(direction)
        factor = group["constant"]
        if self.clip and self.clip_on == "direction":
            factor *= _factor(factor * length(direction), self.clip)
        elif self.clip and self.clip_on == "dual":
            pairs = zip(gradients, direction, strict=True)
            square = factor * sum(float(torch.dot(g.view(-1), d.view(-1))) for g, d in pairs)
            factor *= _factor(math.sqrt(square) if math.isfinite(square) else math.nan, self.clip)
        self._move(group, direction, factor)

    def _refresh(self, group: dict[str, Any]) -> None:
        """Measure 1 / kappa when it is time; 0 where no path uses an entry."""
        finite = all(bool(p.isfinite().all()) for p in self.weights)
        # Without finite weights there is no kappa: the run has diverged, and its loss will say so.
        if finite and group["age"] % self.refresh_every == 0:
            found = kappas(self.weights, self.steps, self.reading)
            group["inverse"] = [torch.where(kappa > 0, 1.0 / kappa, 0.0) for kappa in found]
        group["age"] = (group["age"] + 1) % self.refresh_every

    def _move(
        self, group: dict[str, Any], direction: tuple[Tensor, ...] | list[Tensor], factor: float
    ) -> None:
        lr, momentum = group["lr"], group["momentum"]
        if momentum:
            direction, factor = torch._foreach_mul(direction, factor), 1.0
            if group["buffers"]:
                torch._foreach_add_(direction, group["buffers"], alpha=momentum)
            group["buffers"] = direction
        for p, d in zip(self.weights, direction, strict=True):
            p.sub_(d, alpha=lr * factor)


def _factor(length: float, limit: float) -> float:
    """min(1, limit / length)."""
    return limit / length if length > limit else 1.0


class PaperPathSgdStepper(GradientStepper):
    """Tells the optimiser how long the sequences are."""

    optimiser: PaperPathSGD

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        self.optimiser.steps = len(batch.inputs)
        return super().step(batch, state)


@dataclass(frozen=True)
class PaperPathSgdOptimiser(GradientOptimiser):
    """The paper's Path-SGD, grad / kappa, in every reading of its text."""

    name: ClassVar[str] = "path-sgd-paper"
    title: ClassVar[str] = "Path-SGD (paper)"
    needs_paths: ClassVar[bool] = True

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    clip: float = 1.0
    """Bound on what ``clip_on`` names; 0: none."""
    clip_on: Bound = "direction"
    """What is bounded: the length of the direction after scaling, of the gradient before, or the
    dual norm."""
    scale: Scale = "sgd"
    """sgd: one constant makes the first direction as long as the gradient; kappa: grad / kappa as
    it is."""
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
        return PaperPathSgdStepper(
            system, model, task, self.make(model, task), 0.0, self.growth_limit
        )

    def make(self, model: SequenceNet, task: Task) -> PaperPathSGD:
        """The rule on a plain net."""
        if not isinstance(model, RecurrentNet):
            raise ValueError(
                "path-sgd-paper is for one-layer ReLU nets (rnn_path, irnn, rnn_relu, np_rnn)"
            )
        reading = Reading(self.initial_state, self.every_output, self.biases, self.both_terms)
        bound = self.clip, self.clip_on
        return PaperPathSGD(
            model, self.lr, reading, self.scale, *bound, self.momentum, self.refresh_every
        )

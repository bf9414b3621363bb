"""The paper's Path-SGD on a plain ReLU net, in every way its text can be read.

    D = c G / kappa        c = 1, or |G| / |G / kappa| of the first step: that step is then as long as SGD's
    p <- p - lr D          G or D bounded in one of three ways

The paper leaves open which paths kappa counts and how far a step goes.  The readings:

    initial_state   the units at time 0 are input nodes, so paths begin there too, although their value is 0
    every_output    outputs at every step are output nodes, although the loss reads the last one only
    biases          the net has biases; without them they stay at 0
    both            kappa1 + kappa2 instead of kappa1

`pathsgd.PathSGD` has one reading, the one that rescaling leaves alone and that follows the model: no initial state,
the outputs that the loss reads, the parameters there are.

Glossary: A = W_rec^2, u = what enters a step, v = what an output collects, h_t and delta_t the states of the squared
net and their derivatives, all time first; T steps, H units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pathsgd.arithmetic.second_order import exact_sum
from pathsgd.metric.bounds import Scale
from pathsgd.paths.recurrent import sequences
from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.systems.plain import RecurrentNet
from pathsgd_lab.tasks import Batch, State, Task

Bound = Literal["direction", "gradient", "dual"]


class Reading(NamedTuple):
    """Which paths count."""

    initial_state: bool = False
    every_output: bool = False
    biases: bool = True
    both: bool = False


class PlainWeights(NamedTuple):
    """The parameters of a one-layer net, in the order in which all lists of this module have them."""

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
            rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0, readout.weight, readout.bias
        )  # fmt: skip


@torch.no_grad()
def kappas(weights: PlainWeights, steps: int, reading: Reading) -> PlainWeights:
    """kappa of every parameter under a reading, float64, broadcastable to the parameter's shape."""
    u = weights.w_in.double().square().sum(1)
    if reading.biases:
        u = u + weights.b_in.double().square() + weights.b_rec.double().square()
    v = weights.w_out.double().square().sum(0)
    h, delta, _ = sequences(weights.w_rec, u, v, steps, every_step=reading.every_output, root=1.0)
    before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
    if reading.initial_state:
        # A^0 1 .. A^T 1: the adjoints of the transposed recurrence, backwards.
        ones, nothing = torch.ones_like(u), torch.zeros_like(u)
        _, powers, _ = sequences(
            weights.w_rec.t(), nothing, ones, steps + 1, every_step=False, root=1.0
        )
        powers = powers.flip(0)
        before, h = before + powers[:-1], h + powers[1:]
    recurrent = delta.t() @ before
    if reading.both:
        A = weights.w_rec.double().square()
        recurrent = recurrent + 4.0 * A * exact_sum(A, before, delta)
    into = delta.sum(0)
    out = h.sum(0) if reading.every_output else h[-1]
    outputs = torch.tensor([float(steps) if reading.every_output else 1.0], dtype=torch.float64)
    bias, bias_out = (
        (into, outputs) if reading.biases else (torch.zeros_like(into), torch.zeros_like(outputs))
    )
    return PlainWeights(into[:, None], recurrent, bias, bias, out[None], bias_out)


def length(vectors: Sequence[Tensor]) -> float:
    """Euclidean length of all of them together."""
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(vectors)))))


class PaperPathSGD(torch.optim.Optimizer):
    """p <- p - lr D, with momentum on D as in torch.optim.SGD; see the top of this module.

    clip: bound on |D| ("direction"), on |G| before it is divided ("gradient") or on sqrt(<G, D>), the dual norm
    ("dual"); 0: none.  The constant of ``scale="sgd"`` is kept in the parameter group, and so in the state dict.
    """

    def __init__(
        self, net: RecurrentNet, lr: float, reading: Reading, scale: Scale, clip: float, clip_on: Bound,
        momentum: float = 0.0, refresh_every: int = 1,
    ) -> None:  # fmt: skip
        self.weights, self.reading = PlainWeights.of(net), reading
        self.clip, self.clip_on, self.refresh_every = clip, clip_on, refresh_every
        self.steps = 0
        """Length of the sequences of the last batch; whoever calls ``step`` sets it."""
        # In the group, not in the parameters' states: torch would load those in the parameters' dtype.
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
            square = sum(
                float(torch.dot(g.view(-1), d.view(-1)))
                for g, d in zip(gradients, direction, strict=True)
            )
            factor *= _factor(
                math.sqrt(factor * square) if math.isfinite(square) else math.nan, self.clip
            )
        self._move(group, direction, factor)

    def _refresh(self, group: dict[str, Any]) -> None:
        """Measure 1 / kappa when it is time; 0 where no path uses an entry."""
        if group["age"] % self.refresh_every == 0:
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
    """The paper's Path-SGD, grad / kappa, in every way its text can be read (top of this module)."""

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
        return PaperPathSGD(
            model,
            self.lr,
            reading,
            self.scale,
            self.clip,
            self.clip_on,
            self.momentum,
            self.refresh_every,
        )

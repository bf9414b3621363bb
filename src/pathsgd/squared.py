"""The squared network: every parameter p replaced by q = |p|^order, run once on the all-ones input.

    gamma^2 = sum over all input-to-output paths of prod p^2 = g(q)      (order 2)

Everything in that pass is nonnegative, so units are the identity in it and g is a polynomial in q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pathsgd import scaled
from pathsgd.recording import Output, record
from pathsgd.rules.base import Recording, Step, Value
from pathsgd.scaled import Scaled


@dataclass(frozen=True)
class Recurrence:
    """What the closed form of kappa2 needs of one pass through a recurrent matrix."""

    parameter: str
    A: Tensor
    states: Tensor
    start: Tensor
    sigma: float


class Evaluation:
    """One pass of the squared network over a recording.

    weights: parameter name -> q (mantissa, a leaf for autograd) with its log-scale; total: gamma^2 as `Scaled`.
    """

    def __init__(
        self, recording: Recording, parameters: Mapping[str, Tensor], order: float = 2.0, *, unroll: bool = False
    ) -> None:
        self.order, self.unroll = order, unroll
        self.recurrences: list[Recurrence] = []
        self.weights: dict[str, Scaled] = {}
        self._values: dict[Value, Scaled] = {}
        for name, value in recording.parameters.items():
            q = scaled.power_of(parameters[name].detach(), order)
            q.mantissa.requires_grad_()
            self.weights[name] = self._values[value] = q
        self._names = {id(q): name for name, q in self.weights.items()}
        device = next(iter(parameters.values())).device
        one = torch.ones((), dtype=torch.float64, device=device)
        for value in recording.inputs:
            self._values[value] = Scaled(one.expand(value.shape), one.new_zeros(()))
        with torch.enable_grad():
            for step in recording.steps:
                self._run(step)
            assert recording.output is not None
            self.total = self._values[recording.output].sum()
        if recording.examples > 1:
            self.total = self.total.times(1 / recording.examples)

    def _run(self, step: Step) -> None:
        args, kwargs = tree_map(lambda a: self._values[a] if isinstance(a, Value) else a, (step.args, step.kwargs))
        results = step.rule.squared(self, *args, **kwargs)
        for value, result in zip(step.outputs, (results,) if step.single else results):
            if value is not None:
                self._values[value] = result

    def constant(self, value: Any) -> Scaled:
        return scaled.power_of(torch.as_tensor(value, dtype=torch.float64), self.order)

    def recurrence(self, weight: Any, A: Scaled, states: Scaled, start: Scaled | None, sigma: float) -> None:
        name = self._names.get(id(weight))
        if name is None:
            return
        first = states.log_scale.reshape(-1)[0] - sigma  # the scale of step 0
        h0 = torch.zeros_like(states.mantissa[0]) if start is None else start.rescaled_to(first).mantissa
        transition = (A.mantissa * torch.exp(A.log_scale - sigma)).detach()
        self.recurrences.append(Recurrence(name, transition, states.mantissa, h0.detach(), sigma))


def evaluate(model: nn.Module, inputs: tuple[Any, ...], order: float = 2.0, output: Output = None) -> Evaluation:
    recording = record(model, inputs, output)
    return Evaluation(recording, dict(model.named_parameters()), order)


def log_gamma_sq(model: nn.Module, *inputs: Any, output: Output = None) -> Tensor:
    """log gamma^2 as a 0-d float64 tensor; finite for every length, -inf where no path reaches the output."""
    total = evaluate(model, inputs, output=output).total
    return (total.mantissa.log() + total.log_scale).detach()


def gamma_sq(model: nn.Module, *inputs: Any, output: Output = None) -> Tensor:
    """gamma^2, the sum over all input-to-output paths of the product of squared weights, as a 0-d float64 tensor.

    Only shapes and dtypes of `inputs` matter. It does not depend on the batch size: it is the network's, measured on
    one example. Where gamma^2 itself exceeds float64 the result is inf; `log_gamma_sq` never is.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.ReLU(), torch.nn.Linear(3, 1, bias=False))
    >>> expected = (net[2].weight.double() ** 2 @ net[0].weight.double() ** 2).sum()
    >>> bool(torch.isclose(gamma_sq(net, torch.ones(1, 2)), expected))
    True
    """
    total = evaluate(model, inputs, output=output).total
    return _exp(total.mantissa.detach(), total.log_scale, 1.0)


def _exp(mantissa: Tensor, log_scale: Tensor, order: float) -> Tensor:
    """(mantissa * exp(log_scale))^(1/order), overflowing only where the result does."""
    if log_scale == 0 and order == 1:
        return mantissa
    return torch.where(mantissa > 0, ((mantissa.log() + log_scale) / order).exp(), torch.zeros_like(mantissa))


def path_norm(model: nn.Module, *inputs: Any, order: float = 2, output: Output = None) -> Tensor:
    """(sum over paths of prod |w|^order)^(1/order), a 0-d float64 tensor. Order 1 bounds the output on [-1, 1]."""
    if not order > 0:
        raise ValueError(f"order must be positive, got {order}")
    total = evaluate(model, inputs, float(order), output).total
    return _exp(total.mantissa.detach(), total.log_scale, float(order))

"""The squared network: every parameter p replaced by q = |p|^order, run once on the all-ones input.

    gamma^2 = sum over all input-to-output paths of prod p^2 = g(q)      (order 2)

Everything in that pass is nonnegative, so units are the identity in it and g is a polynomial in q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd import scaled
from pathsgd.recurrence import States
from pathsgd.rules.base import Recording, Step, Value, map_leaves
from pathsgd.scaled import Scaled


@dataclass(frozen=True)
class Recurrence:
    """One pass through a recurrent matrix: what the closed form of kappa2 needs."""

    parameter: str
    states: States


class Evaluation:
    """One pass of the squared network over a recording.

    weights: parameter name -> q, its mantissa a leaf for autograd, with its log-scale; total: gamma^2 as `Scaled`.
    unroll: recurrences from ordinary operations, for second derivatives in batches.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        recording: Recording,
        parameters: Mapping[str, Tensor],
        order: float = 2.0,
        *,
        unroll: bool = False,
        differentiable: bool = True,
    ) -> None:
        self.order, self.unroll = order, unroll
        self.recurrences: list[Recurrence] = []
        self.weights: dict[str, Scaled] = {}
        self._values: dict[Value, Scaled] = {}
        for name, value in recording.parameters.items():
            q = scaled.power_of(parameters[name].detach(), order)
            q.mantissa.requires_grad_(differentiable)
            self.weights[name] = self._values[value] = q
        self._names = {id(q): name for name, q in self.weights.items()}
        self._device = next(iter(parameters.values())).device
        one = torch.ones((), dtype=torch.float64, device=self._device)
        for value in recording.inputs:
            self._values[value] = Scaled(one.expand(value.shape), one.new_zeros(()))
        with torch.set_grad_enabled(differentiable):
            for step in recording.steps:
                self._run(step)
            assert recording.output is not None
            self.total = self._values[recording.output].sum().times(1 / recording.examples)
        self._values.clear()  # the graph keeps what derivatives need

    def _run(self, step: Step) -> None:
        args, kwargs = map_leaves(lambda a: self._values[a] if isinstance(a, Value) else a, (step.args, step.kwargs))
        results = step.rule.squared(self, *args, **kwargs)
        for value, result in zip(step.outputs, (results,) if step.single else results):
            if value is not None:
                self._values[value] = result

    def constant(self, value: Any) -> Scaled:
        values = torch.as_tensor(value, dtype=torch.float64, device=self._device)
        if not bool(values.isfinite().all()):
            raise ValueError(
                f"a constant of shape {tuple(values.shape)} in the forward pass has NaN or infinite entries; "
                "its paths have no finite weight"
            )
        return scaled.power_of(values, self.order)

    def recurrence(self, weight: Any, states: States) -> None:
        name = self._names.get(id(weight))
        if name is not None:
            self.recurrences.append(Recurrence(name, states))

"""The squared network: every parameter p replaced by q = |p|^order, run once on the all-ones input.

    gamma^2 = sum over all input-to-output paths of prod p^2 = g(q)      (order 2)

Everything in that pass is nonnegative, so units are the identity in it and g is a polynomial in q.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import States
from pathsgd.arithmetic.scaled import Scaled, add, no_scale, power_of
from pathsgd.rules.base import Squared, examples
from pathsgd.tape import Recording, Value, interpret


@dataclass(frozen=True)
class Recurrence:
    """One pass through a recurrent matrix: what the closed form of kappa2 needs."""

    parameter: str
    states: States


class Evaluation:
    """One pass of the squared network over a recording.

    weights: parameter name -> q, a mantissa with its log-scale.
    total: gamma^2 as `Scaled`.
    recurrences: the passes through recurrent matrices that are parameters.

    derivative: what autograd may differentiate the mantissa of `total` in: the mantissas of q, which are leaves then;
        the parameters themselves; or nothing.
    """

    @torch.inference_mode(False)
    def __init__(
        self,
        recording: Recording,
        parameters: Mapping[str, Tensor],
        order: float = 2.0,
        *,
        unroll: bool = False,
        derivative: Literal["q", "p"] | None = "q",
    ) -> None:
        with torch.set_grad_enabled(derivative == "p"):
            self.weights = {name: power_of(parameters[name], order) for name in recording.parameters}
        if derivative == "q":
            for q in self.weights.values():
                q.mantissa.requires_grad_()
        device = next(iter(parameters.values())).device
        net = Squared(order, device, unroll=unroll)
        one = torch.ones((), dtype=torch.float64, device=device)
        known: dict[Value, Scaled] = {v: self.weights[name] for name, v in recording.parameters.items()}
        known.update({v: Scaled(one.expand(v.shape), no_scale()) for v in recording.inputs})
        with torch.set_grad_enabled(derivative is not None):
            interpret(recording, known, lambda step, args, kwargs: step.rule.squared(net, *args, **kwargs))
            sums = [known[output].sum() for output in recording.outputs]
            self.total = reduce(add, sums).times(1 / examples(recording))
        names = {id(q): name for name, q in self.weights.items()}
        self.recurrences = [Recurrence(names[id(w)], states) for w, states in net.states if id(w) in names]

"""The squared network: every parameter p replaced by q = |p|^order, run once on the all-ones input.

    gamma^2 = sum over all input-to-output paths of prod p^2 = g(q)      (order 2)

Everything in that pass is nonnegative, so units are the identity in it and g is a polynomial in q.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import States
from pathsgd.arithmetic.scaled import Scaled, add, no_scale, power_of
from pathsgd.arithmetic.unsquared import Unsquared
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
    unsquared: the parameters that have no q, because it was asked for kappa1 alone (arithmetic/unsquared.py).

    kept: the path sums of the values in `keep`.

    derivative: what autograd may differentiate the mantissa of `total` in: the mantissas of q, which are leaves then;
        the parameters themselves; or nothing.
    given: path sums of values that the recorded steps read but do not make.
    wanted: the parameters whose q may be differentiated in; None for all.
    bare: names of matrices that need no q, out of `applied_to_one_row`.
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
        keep: Iterable[Value] = (),
        given: Mapping[Value, Scaled] | None = None,
        wanted: Container[str] | None = None,
        bare: Container[str] = (),
    ) -> None:
        self.unsquared = {name: Unsquared(parameters[name]) for name in recording.parameters if name in bare}
        with torch.set_grad_enabled(derivative == "p"):
            self.weights = {
                name: power_of(parameters[name], order) for name in recording.parameters if name not in bare
            }
        if derivative == "q":
            for name, q in self.weights.items():
                q.mantissa.requires_grad_(wanted is None or name in wanted)
        device = next(iter(parameters.values())).device
        net = Squared(order, device, unroll=unroll)
        one = torch.ones((), dtype=torch.float64, device=device)
        operands: dict[str, Any] = {**self.weights, **self.unsquared}
        known: dict[Value, Any] = {v: operands[name] for name, v in recording.parameters.items()}
        known.update({v: Scaled(one.expand(v.shape), no_scale()) for v in recording.inputs})
        known.update(given or {})
        with torch.set_grad_enabled(derivative is not None):
            interpret(recording, known, lambda step, args, kwargs: step.rule.squared(net, *args, **kwargs))
            sums = [known[output].sum() for output in recording.outputs]
            self.total = reduce(add, sums).times(1 / examples(recording))
        self.kept = {value: known[value] for value in keep}
        names = {id(q): name for name, q in self.weights.items()}
        self.recurrences = [Recurrence(names[id(w)], states) for w, states in net.states if id(w) in names]


def applied_to_one_row(recording: Recording) -> frozenset[str]:
    """The matrices that one linear layer applies to one row, and nothing else uses: kappa1 is an outer product."""
    uses = Counter(value for step in recording.steps for value in step.operands)
    uses.update((*recording.outputs, *recording.returned))
    found = set()
    for step in recording.steps:
        x, weight = (*step.args, *step.kwargs.values())[:2] if step.operation == "linear" else (None, None)
        name = recording.names.get(weight) if isinstance(weight, Value) else None
        if name is None or uses[weight] > 1 or not isinstance(x, Value) or len(weight.shape) != 2:
            continue
        if x.shape.numel() == weight.shape[1] and step.kwargs.keys() <= {"weight", "bias"}:
            found.add(name)
    return frozenset(found)

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
from pathsgd.distributed.gathered import Gathered, Shelf
from pathsgd.distributed.spread import is_sharded, whole
from pathsgd.network.framing import Framing
from pathsgd.network.rules.base import Squared, examples
from pathsgd.network.rules.convolution import ConvolutionRule
from pathsgd.network.tape import Recording, Step, Value, interpret, map_leaves
from pathsgd.network.unsquared import UnsquaredKernel, UnsquaredMatrix

_FEW = 2
"""A sharded parameter with more uses (a loop) is gathered once, not for each use."""


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
    unsquared: the parameters without a kept q: kappa1 alone is wanted (network/unsquared.py), or
        they are sharded and gathered for each use (distributed/gathered.py).
    kept: the path sums of the values in `keep`.

    derivative: what the mantissa of `total` can be differentiated in: the mantissas of q, which are
        leaves then; the parameters; or nothing.
    given: path sums of values that the recorded steps read but do not compute.
    wanted: the parameters whose q may be differentiated in; None for all.
    framing: the steps that may work on small images; values in `keep` may be such images then.
    bare: parameters that need no q, out of `used_once`; those that are not wanted, also out of
        `in_rows`.
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
        framing: Framing | None = None,
    ) -> None:
        keep = list(keep)
        self.unsquared: dict[str, UnsquaredMatrix | UnsquaredKernel | Gathered] = {
            name: unsquared(parameters[name], wanted is None or name in wanted)
            for name in recording.parameters
            if name in bare
        }
        if derivative != "p":
            for name in _gathered_when_used(recording, parameters, keep):
                if name in bare:
                    continue
                is_wanted = derivative is not None and (wanted is None or name in wanted)
                self.unsquared[name] = Gathered(parameters[name], order, wanted=is_wanted)
        with torch.set_grad_enabled(derivative == "p"):
            self.weights = {
                name: power_of(whole(parameters[name]), order)
                for name in recording.parameters
                if name not in self.unsquared
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
            if any(isinstance(operand, Gathered) for operand in self.unsquared.values()):
                _interpret_gathering(recording, known, net)
            else:
                _interpret(recording, known, net, framing)
            sums = [known[output].sum() for output in recording.outputs]
            self.total = reduce(add, sums).times(1 / examples(recording))
        self.kept = {value: known[value] for value in keep}
        names = {id(q): name for name, q in self.weights.items()}
        self.recurrences = [
            Recurrence(names[id(w)], states) for w, states in net.states if id(w) in names
        ]


def _interpret(
    recording: Recording, known: dict[Value, Any], net: Squared, framing: Framing | None
) -> None:
    """Walk through the steps, on small images where that is possible."""

    def squared(step: Step, args: Any, kwargs: Any) -> Any:
        if framing is None:
            return step.rule.squared(net, *args, **kwargs)
        return framing.squared(net, step, args, kwargs)

    if framing is not None:
        framing.begin(known)
    interpret(recording, known, squared)


def _gathered_when_used(
    recording: Recording, parameters: Mapping[str, Tensor], keep: list[Value]
) -> list[str]:
    """The sharded parameters that few steps use: each step gathers them."""
    sharded = {v: name for name, v in recording.parameters.items() if is_sharded(parameters[name])}
    if not sharded:
        return []
    uses = Counter(value for step in recording.steps for value in step.operands)
    shown = {*keep, *recording.outputs}
    return [name for value, name in sharded.items() if uses[value] <= _FEW and value not in shown]


def _interpret_gathering(recording: Recording, known: dict[Value, Any], net: Squared) -> None:
    """The same walk through the steps, in which each gathers the parameters it uses."""
    shelf = Shelf()

    def squared(step: Step, args: Any, kwargs: Any) -> Any:
        args, kwargs = map_leaves(shelf.take, (args, kwargs))
        try:
            return step.rule.squared(net, *args, **kwargs)
        finally:
            shelf.clear()

    with shelf.notes():
        interpret(recording, known, squared)


def unsquared(parameter: Tensor, wanted: bool) -> UnsquaredMatrix | UnsquaredKernel:
    """A parameter of the squared network whose q is not needed; wanted: whether its kappa1 is."""
    kind = UnsquaredMatrix if parameter.dim() == 2 else UnsquaredKernel
    return kind(parameter, wanted=wanted)


def used_once(recording: Recording) -> frozenset[str]:
    """The parameters that need no q: matrices applied to one row, kernels of convolutions.

    Nothing else may use them.
    """
    uses = _uses(recording)
    found = set()
    for step in recording.steps:
        x, weight = (*step.args, step.kwargs.get("weight"), None)[:2]
        name = recording.names.get(weight) if isinstance(weight, Value) else None
        if name is None or uses[weight] > 1 or not isinstance(x, Value):
            continue
        if _is_on_one_row(step, x, weight, {"linear": 1}) or isinstance(step.rule, ConvolutionRule):
            found.add(name)
    return frozenset(found)


def in_rows(recording: Recording) -> frozenset[str]:
    """The matrices that are used in products with one row only: W x, and x W of tied weights."""
    uses = _uses(recording)
    products: Counter[Value] = Counter()
    for step in recording.steps:
        x, weight = (*step.args, None, None)[:2]
        both = isinstance(x, Value) and isinstance(weight, Value)
        if both and _is_on_one_row(step, x, weight, {"linear": 1, "matmul": 0, "mm": 0}):
            products[weight] += 1
    return frozenset(
        name for name, value in recording.parameters.items() if 0 < uses[value] == products[value]
    )


def _uses(recording: Recording) -> Counter[Value]:
    """How often each value is read."""
    uses = Counter(value for step in recording.steps for value in step.operands)
    uses.update((*recording.outputs, *recording.returned))
    return uses


def _is_on_one_row(step: Step, x: Value, weight: Value, contracted: Mapping[str, int]) -> bool:
    """Whether a step applies a matrix to one row. contracted: summed dimension by operation."""
    dim = contracted.get(step.operation)
    if dim is None or len(weight.shape) != 2:
        return False
    return x.shape.numel() == x.shape[-1] == weight.shape[dim]

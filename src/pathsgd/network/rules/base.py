"""How each torch operation carries paths: one rule for each, in one table.

A rule defines two things for an operation:

- `squared`: how sums over paths flow through it. Operands that carry paths are `Scaled`, everything
  else is as the user wrote it; the result is `Scaled`, or a tuple. Constants count with |c|^order.
- `nodes`: how the nodes of its operands and results relate, as `Nodes` (see network/nodes.py).

Operations have torch's names, without prefix and without the underscore of the in-place form:
`torch.relu`, `torch.Tensor.relu_` and `torch.nn.functional.relu` are all `relu`. A new operation is
a rule here and a row in the tests' case table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import States
from pathsgd.arithmetic.scaled import Scaled, postpone, power_of
from pathsgd.network.framing import Window
from pathsgd.network.tape import Kind, Product, Recording, Step, Value, values_in


class Refusal(Exception):
    """Raised by a rule that does not cover the options of a call; the text is the advice."""


class Squared:
    """The pass of the squared network that calls the rules (network/squared.py).

    order: the exponent, 2 for gamma^2.
    unroll: recurrences are made of ordinary operations, which torch differentiates in batches.
    states: of every recurrence met, with its matrix; kappa2 is computed from them.
    """

    def __init__(self, order: float, device: torch.device, *, unroll: bool = False) -> None:
        self.order, self.device, self.unroll = order, device, unroll
        self.states: list[tuple[Any, States]] = []

    def constant(self, value: Any) -> Scaled:
        """|value|^order of a number or tensor that carries no paths."""
        values = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if not postpone() and not bool(values.isfinite().all()):
            raise ValueError(
                f"a constant of shape {tuple(values.shape)} in the forward pass has NaN or "
                "infinite entries; its paths have no finite weight"
            )
        return power_of(values, self.order)


@dataclass(frozen=True)
class Nodes:
    """The node of each entry of a tensor; for a weight, the parameter entry that it is.

    ids: int64, of the tensor's shape. NOTHING marks a zero. For values of units, FIXED is the node
    of inputs, outputs and constants. For weights, CONSTANT marks an entry that no rescaling
    changes. What is computed from weights (a sum of biases, a product of matrices) is values of
    units.
    """

    ids: Tensor
    weight: bool = False

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape; a whole parameter is not numbered for it."""
        return self.ids.shape


FIXED, NOTHING, CONSTANT = 0, -1, -2
Seen = tuple[list[Any], list[Window]]
"""Operands that are images, and what a result position sees of them along the last dimensions."""


class NodeGraph(Protocol):
    """The analysis that calls `nodes` methods (network/nodes.py).

    exact: only rescalings that keep the function exactly, small constants (eps) included.
    """

    exact: bool

    def activation(self, operand: Any) -> Tensor:
        """Node ids of an operand as values of units: a parameter is a bias, a constant is fixed."""

    def alike(self, *operands: Any) -> tuple[list[Tensor], bool]:
        """Ids of operands that are joined, and whether the result is a weight."""

    def fresh(self, *shape: int) -> Tensor:
        """New nodes."""

    def tie(self, a: Tensor, b: Tensor) -> None:
        """These are the same nodes, entry by entry."""

    def merge(self, ids: Tensor, dims: Iterable[int]) -> Tensor:
        """Tie all entries along dimensions, as a sum or a shared weight does; size 1 remains."""

    def edges(self, weight: Any, target: Tensor | int, source: Tensor | int) -> None:
        """The weight's entries are edges from `source` to `target`, broadcast to its shape."""

    def normalise(self, ids: Tensor) -> None:
        """The scale of these nodes does not matter to what reads them here."""

    @property
    def result_shape(self) -> torch.Size:
        """The shape of the present step's result."""

    def pinned(self, *operands: Any) -> Nodes:
        """Everything involved is fixed: always right, sometimes less than could be found."""


class Rule:
    """One operation; subclasses override what differs.

    summary: how paths pass, for the tables of the docs.
    moves: entries go to the result as they are; a weight that is moved is still that weight.
    multiplies: operands are multiplied with one another, unless `products` says otherwise.
    aliases: the result may share the operand's memory, so in-place changes would reach both.
    slices: how slices of a batch stay apart: entry by entry, row by row, as sequences, or because
        entries are picked along another dimension. None: not known, paths have to be counted.
    """

    summary: str = ""
    moves: bool = False
    multiplies: bool = False
    aliases: bool = False
    slices: Literal["entries", "rows", "sequence", "picked"] | None = None
    kind: Kind | None = None
    """The kind of the result; None: a weight if all operands are weights."""

    def __init__(self, name: str) -> None:
        self.name = name

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SimpleNamespace:
        """The arguments of a call by the names of `squared`, with defaults."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        return SimpleNamespace(**bound.arguments)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.squared)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Raise Refusal for options this rule does not cover; called while recording."""

    def products(self, *args: Any, **kwargs: Any) -> list[Product]:
        """Which operands are multiplied with which; several terms of one factor together."""
        return [[[value] for value in values_in((args, kwargs))]] if self.multiplies else []

    def check_products(self, *args: Any, **kwargs: Any) -> None:
        """Refuse products of two activations."""
        for product in self.products(*args, **kwargs):
            if sum(any(v.kind is not Kind.WEIGHT for v in factor) for factor in product) > 1:
                raise Refusal(
                    "it multiplies two activations, which is not a path; "
                    "one side must be parameters or constants"
                )

    def recurrent(self, *args: Any, **kwargs: Any) -> list[Value]:
        """Weights that one call applies to its own results, step after step."""
        return []

    def repeats(self, *args: Any, **kwargs: Any) -> int:
        """How often one call applies its weights: the steps of a recurrent layer."""
        return 1

    def packed_rows(self, *args: Any, **kwargs: Any) -> int:
        """The number of examples in a packed batch."""
        return 1

    def constants(self, *args: Any, **kwargs: Any) -> Any:
        """The arguments whose values `squared` reads."""
        return args, kwargs

    def windows(self, *args: Any, **kwargs: Any) -> Seen | None:
        """What positions of the result see of the operands, if it is the same everywhere."""
        return None

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        """The arguments as the squared network sees them."""
        return args

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        """The kind of the result for operands of these kinds."""
        if self.kind is not None:
            return self.kind
        return Kind.WEIGHT if all(k is Kind.WEIGHT for k in kinds) else Kind.ACTIVATION

    def shape(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result's shape and dtype, from the operation on tensors without data."""
        return operation(*args, **kwargs)

    def squared(self, net: Squared, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"rule {self.name} defines no squared form")

    def nodes(
        self, graph: NodeGraph, *args: Any, **kwargs: Any
    ) -> Nodes | tuple[Nodes | None, ...]:
        raise AssertionError(f"rule {self.name} defines no node relation")


def products(step: Step) -> list[Product]:
    """Which operands of a recorded step are multiplied with which."""
    return step.rule.products(*step.args, **step.kwargs)


def repeats(step: Step) -> int:
    """How often a recorded step applies its weights: the steps of a recurrent layer."""
    return step.rule.repeats(*step.args, **step.kwargs)


def examples(recording: Recording) -> int:
    """How many examples the output sums over: 1, or the rows of a packed batch."""
    packed = (s.rule.packed_rows(*s.args, **s.kwargs) for s in recording.steps)
    return max(recording.rows, *packed, 1)


# ---- the table -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {}
REFUSED: dict[str, str] = {}

R = TypeVar("R", bound=type[Rule])


def operation(*names: str) -> Callable[[R], R]:
    """Class decorator: this rule serves the operations of these names, separated by spaces."""

    def register(rule: R) -> R:
        for name in " ".join(names).split():
            if name in RULES:
                raise ValueError(f"two rules for {name}")
            RULES[name] = rule(name)
        return rule

    return register


def refuse(reason: str, *names: str) -> None:
    """Operations that are known and refused, with what to do instead; names as in `operation`."""
    REFUSED.update(dict.fromkeys(" ".join(names).split(), reason))


# ---- helpers of rules ----------------------------------------------------------------------------


def per_dimension(value: Any, spatial: int) -> tuple[int, ...]:
    """One number for each dimension, where torch takes one for all of them too."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values if len(values) == spatial else values * spatial


def pointwise(*operands: Any) -> Seen:
    """Each position sees the same position of the operands."""
    dims = [len(a.shape) for a in operands if isinstance(a, (Value, Tensor))]
    return [*operands], [Window()] * max(dims)


def as_scaled(net: Squared, value: Any) -> Scaled:
    """The operand itself if it carries paths, else |value|^order."""
    return value if isinstance(value, Scaled) else net.constant(value)


def contraction(
    net: Squared, product: Callable[..., Tensor], x: Any, w: Any, *, last: bool = False
) -> Scaled:
    """product(x, w), a sum over any dimensions.

    last: it sums over x's last dimension only, and the scales of the others are kept.
    """
    x, w = as_scaled(net, x), as_scaled(net, w).with_one_scale()
    if not last:
        x = x.with_one_scale()
        return Scaled(product(x.mantissa, w.mantissa), x.log_scale + w.log_scale).normalized()
    x = x.merged([-1])
    y = product(x.mantissa, w.mantissa)
    scale = x.log_scale if x.uniform or y.dim() == x.mantissa.dim() else x.log_scale.squeeze(-1)
    return Scaled(y, scale + w.log_scale).normalized()

"""The one table: operation name -> rule.

A rule says two things of a torch operation:

- `squared`: how sums over paths flow through it. Operands that carry paths arrive as `Scaled`, everything else as
  the user wrote it; the result is `Scaled` (or a tuple). Constants count with |c|^order, order = 2 for gamma^2.
- `nodes`: how the node spaces of its operands and results relate, as `Nodes`, integer tensors of node numbers (see nodes.py).

Operations are named as torch names them, without prefix and without the underscore of the in-place form: `torch.relu`,
`torch.Tensor.relu_` and `torch.nn.functional.relu` are all `relu`. A new operation is one rule here and one row in
the tests' case table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pathsgd.scaled import Scaled


class Kind(enum.Enum):
    """What a path-carrying tensor is: it decides what may be multiplied with what."""

    INPUT = "input"
    """Input nodes, possibly moved about: the starts of all paths."""
    WEIGHT = "weight"
    """Made of parameters alone: edges, or a bias (an edge from a node of value one)."""
    ACTIVATION = "activation"
    """Values of units: no two of these may be multiplied."""


@dataclass(eq=False)
class Value:
    """One tensor of a recorded forward pass: what it is and its shape, no data."""

    kind: Kind
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Step:
    """One recorded operation; its arguments hold `Value`s where tensors carry paths, else the user's own objects."""

    operation: str
    rule: Rule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    single: bool
    where: str

    def operands(self) -> list[Value]:
        return _values((self.args, self.kwargs))


@dataclass
class Recording:
    """All steps from the inputs to one output, and the parameters they use."""

    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    output: Value | None = None

    @property
    def examples(self) -> int:
        """How many examples the output sums over: 1, or the rows of a packed batch."""
        return max((s.rule.packed_rows(*s.args, **s.kwargs) for s in self.steps), default=1)


def _values(tree: Any) -> list[Value]:
    return [a for a in tree_leaves(tree) if isinstance(a, Value)]


class Refusal(Exception):
    """Raised by a rule that does not cover the options it was called with; the text says what could be done."""


class Squared(Protocol):
    """What `squared` methods may ask of the evaluation that calls them."""

    order: float
    unroll: bool

    def constant(self, value: Any) -> Scaled:
        """|value|^order of a number or tensor that carries no paths."""

    def recurrence(self, weight: Any, A: Scaled, states: Scaled, start: Scaled | None, sigma: float) -> None:
        """Tell of a recurrent matrix and its states: kappa2 is computed from them in closed form."""


@dataclass(frozen=True)
class Nodes:
    """Which node each entry of a tensor belongs to; for a weight, which parameter entry it is.

    ids: int64, of the tensor's shape. Node 0 is fixed (inputs, outputs, constants); -1 belongs to no node (a zero).
    """

    ids: Tensor
    weight: bool = False


class NodeGraph(Protocol):
    """What `nodes` methods may ask of the analysis that calls them (nodes.py)."""

    def activation(self, operand: Any) -> Tensor:
        """Node ids of an operand as values of units; a parameter becomes a bias, a constant a fixed node."""

    def fresh(self, *shape: int) -> Tensor:
        """New nodes."""

    def tie(self, a: Tensor, b: Tensor) -> None:
        """These are the same nodes, entry by entry."""

    def per_entry(self, ids: Tensor, dim: int) -> Tensor:
        """One node per entry of `dim`, after tying all others along it: what a weight shared over positions asks."""

    def edges(self, weight: Any, out: Tensor | int, into: Tensor | int) -> None:
        """The weight's entries are edges from `into` to `out` (broadcast to the weight's shape)."""

    @property
    def result_shape(self) -> torch.Size:
        """The shape of the result under way."""

    def pinned(self, *operands: Any) -> Nodes:
        """No freedom here: everything involved is fixed. Always right, sometimes less than could be found."""


class Rule:
    """One operation's behaviour; subclasses override what differs."""

    summary: str = ""
    multiplies: bool = False
    """Its factors are multiplied with one another: at most one may be values of units."""
    aliases: bool = False
    """The result may share memory with the operand (as views do), so in-place changes would reach both."""

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Raise Refusal for options this rule does not cover. Called while recording, with `Value`s in place."""

    def factors(self, *args: Any, **kwargs: Any) -> list[list[Value]]:
        """Operands in groups; within a group they are added, across groups multiplied."""
        return [[value] for value in _values((args, kwargs))]

    def check_factors(self, *args: Any, **kwargs: Any) -> None:
        groups = self.factors(*args, **kwargs) if self.multiplies else []
        if sum(any(v.kind is not Kind.WEIGHT for v in group) for group in groups) > 1:
            raise Refusal(
                "it multiplies two activations, which is not a path; one side must be parameters or constants"
            )

    def repeats(self, *args: Any, **kwargs: Any) -> int:
        """How often one call applies its weights along a path: the steps of a recurrent layer."""
        return 1

    def packed_rows(self, *args: Any, **kwargs: Any) -> int:
        """How many examples a packed batch holds."""
        return 1

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        """The arguments as the squared network sees them."""
        return args

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        kinds = list(kinds)
        return Kind.WEIGHT if all(k is Kind.WEIGHT for k in kinds) else Kind.ACTIVATION

    def shape(self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result's shape and dtype, from running the operation itself on tensors without data."""
        return operation(*args, **kwargs)

    def squared(self, net: Squared, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"rule {self.name} defines no squared form")

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes | tuple[Nodes | None, ...]:
        raise AssertionError(f"rule {self.name} defines no node relation")


RULES: dict[str, Rule] = {}
REFUSED: dict[str, str] = {}

R = TypeVar("R", bound=type[Rule])


def operation(*names: str) -> Callable[[R], R]:
    """Class decorator: this rule serves the operations of these names."""

    def register(rule: R) -> R:
        for name in names:
            if name in RULES:
                raise ValueError(f"two rules for {name}")
            RULES[name] = rule(name)
        return rule

    return register


def refuse(reason: str, *names: str) -> None:
    """Operations that are known and refused, with what could be done instead."""
    REFUSED.update(dict.fromkeys(names, reason))


def as_scaled(net: Squared, value: Any) -> Scaled:
    return value if isinstance(value, Scaled) else net.constant(value)


def contraction(net: Squared, product: Callable[..., Tensor], x: Any, w: Any, dim: int | None = None) -> Scaled:
    """product(x, w), a sum over `dim` of x that keeps its other dimensions; None: a sum over anything."""
    x, w = as_scaled(net, x), as_scaled(net, w).with_one_scale()
    x = x.with_one_scale() if dim is None else x.merged([dim])
    return Scaled(product(x.mantissa, w.mantissa), x.log_scale + w.log_scale).normalized()

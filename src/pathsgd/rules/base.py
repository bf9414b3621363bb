"""The one table: operation name -> rule.

A rule says two things of a torch operation:

- `squared`: how sums over paths flow through it. Operands that carry paths arrive as `Scaled`, everything else as
  the user wrote it; the result is `Scaled` (or a tuple). Constants count with |c|^order, order = 2 for gamma^2.
- `nodes`: how the node spaces of its operands and results relate, as `Nodes`, integer tensors of node numbers (see
  node_graph.py).

Operations are named as torch names them, without prefix and without the underscore of the in-place form: `torch.relu`,
`torch.Tensor.relu_` and `torch.nn.functional.relu` are all `relu`. A new operation is one rule here and one row in
the tests' case table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pathsgd.recurrence import States
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


Product = list[list[Value]]
"""Factors of one product, each with the operands it is the sum of. At most one factor may be values of units."""


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
        return values_in((self.args, self.kwargs))

    def products(self) -> list[Product]:
        return self.rule.products(*self.args, **self.kwargs)


@dataclass
class Recording:
    """All steps from the inputs to one output, and the parameters they use."""

    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    output: Value | None = None

    @cached_property
    def examples(self) -> int:
        """How many examples the output sums over: 1, or the rows of a packed batch."""
        return max((s.rule.packed_rows(*s.args, **s.kwargs) for s in self.steps), default=1)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """function of every leaf of an operation's arguments, which are plain tuples, lists and dicts of leaves."""
    if type(tree) is tuple:
        return tuple([map_leaves(function, branch) for branch in tree])
    if type(tree) is list:
        return [map_leaves(function, branch) for branch in tree]
    if type(tree) is dict:
        return {key: map_leaves(function, branch) for key, branch in tree.items()}
    return function(tree)


def leaves(tree: Any) -> list[Any]:
    """The leaves that `map_leaves` would meet."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def values_in(tree: Any) -> list[Value]:
    return [a for a in leaves(tree) if isinstance(a, Value)]


class Refusal(Exception):
    """Raised by a rule that does not cover the options it was called with; the text says what could be done."""


class Squared(Protocol):
    """What `squared` methods may ask of the evaluation that calls them."""

    order: float
    unroll: bool

    def constant(self, value: Any) -> Scaled:
        """|value|^order of a number or tensor that carries no paths."""

    def recurrence(self, weight: Any, states: States) -> None:
        """Tell of a recurrent matrix and its states: kappa2 is computed from them in closed form."""


@dataclass(frozen=True)
class Nodes:
    """Which node each entry of a tensor belongs to; for a weight, which parameter entry it is.

    ids: int64, of the tensor's shape. NOTHING (-1) marks a zero. Values of units: node 0 is fixed (inputs, outputs,
    constants). Weights: CONSTANT (-2) marks an entry that no rescaling can change. What is computed from weights alone
    (a sum of biases, a product of matrices) is values of units that only biases enter.
    """

    ids: Tensor
    weight: bool = False


FIXED, NOTHING, CONSTANT = 0, -1, -2


class NodeGraph(Protocol):
    """What `nodes` methods may ask of the analysis that calls them (node_graph.py)."""

    exact: bool
    """Whether only rescalings are wanted that leave the function exactly as it is, small constants (eps) included."""

    def activation(self, operand: Any) -> Tensor:
        """Node ids of an operand as values of units; a parameter becomes a bias, a constant a fixed node."""

    def alike(self, *operands: Any) -> tuple[list[Tensor], bool]:
        """Ids of operands to be mixed, and whether the mixture is a weight: if none of them is values of units."""

    def fresh(self, *shape: int) -> Tensor:
        """New nodes."""

    def tie(self, a: Tensor, b: Tensor) -> None:
        """These are the same nodes, entry by entry."""

    def merge(self, ids: Tensor, dims: Iterable[int]) -> Tensor:
        """Tie all entries along these dimensions, as a sum or a weight shared over positions asks; size 1 remains."""

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
    moves: bool = False
    """Entries go from operand to result as they are: a weight moved is still that weight."""
    multiplies: bool = False
    """Its operands are multiplied with one another, unless `products` says otherwise."""
    aliases: bool = False
    """The result may share memory with the operand (as views do), so in-place changes would reach both."""

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Raise Refusal for options this rule does not cover. Called while recording, with `Value`s in place."""

    def products(self, *args: Any, **kwargs: Any) -> list[Product]:
        """The operation's products: which operands are multiplied with which, several terms of one factor together."""
        return [[[value] for value in values_in((args, kwargs))]] if self.multiplies else []

    def check_products(self, *args: Any, **kwargs: Any) -> None:
        for product in self.products(*args, **kwargs):
            if sum(any(v.kind is not Kind.WEIGHT for v in factor) for factor in product) > 1:
                raise Refusal(
                    "it multiplies two activations, which is not a path; one side must be parameters or constants"
                )

    def recurrent(self, *args: Any, **kwargs: Any) -> list[Value]:
        """Weights that one call applies to its own results, step after step."""
        return []

    def repeats(self, *args: Any, **kwargs: Any) -> int:
        """How often one call applies its weights: the steps of a recurrent layer."""
        return 1

    def packed_rows(self, *args: Any, **kwargs: Any) -> int:
        """How many examples a packed batch holds."""
        return 1

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        """The arguments as the squared network sees them."""
        return args

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
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


def contraction(net: Squared, product: Callable[..., Tensor], x: Any, w: Any, *, last: bool = False) -> Scaled:
    """product(x, w), a sum over anything; with `last`, over x's last dimension, and scales of the others are kept."""
    x, w = as_scaled(net, x), as_scaled(net, w).with_one_scale()
    if not last:
        x = x.with_one_scale()
        return Scaled(product(x.mantissa, w.mantissa), x.log_scale + w.log_scale).normalized()
    x = x.merged([-1])
    y = product(x.mantissa, w.mantissa)
    scale = x.log_scale if x.uniform or y.dim() == x.mantissa.dim() else x.log_scale.squeeze(-1)
    return Scaled(y, scale + w.log_scale).normalized()


def shape_of(operand: Any) -> torch.Size:
    """The shape of an operand, also in the node analysis."""
    return operand.ids.shape if isinstance(operand, Nodes) else operand.shape

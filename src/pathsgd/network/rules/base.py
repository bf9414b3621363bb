"""The one table: operation name -> rule.

A rule says two things of a torch operation:

- `squared`: how sums over paths flow through it. Operands that carry paths arrive as `Scaled`, everything else as
  the user wrote it; the result is `Scaled` (or a tuple). Constants count with |c|^order, order = 2 for gamma^2.
- `nodes`: how the node spaces of its operands and results relate, as `Nodes`, integer tensors of node numbers (see
  network/nodes.py).

Operations are named as torch names them, without prefix and without the underscore of the in-place form: `torch.relu`,
`torch.Tensor.relu_` and `torch.nn.functional.relu` are all `relu`. A new operation is one rule here and one row in
the tests' case table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import States
from pathsgd.arithmetic.scaled import Scaled, postpone, power_of
from pathsgd.network.framing import Window
from pathsgd.network.tape import Kind, Product, Recording, Step, Value, values_in


class Refusal(Exception):
    """Raised by a rule that does not cover the options it was called with; the text says what could be done."""


class Squared:
    """What `squared` methods may ask of the pass that calls them (network/squared.py).

    order: the exponent, 2 for gamma^2. unroll: recurrences are to be made of ordinary operations, which torch can
    differentiate in batches. states: of every recurrence met, with its matrix; kappa2 is computed from them.
    """

    def __init__(self, order: float, device: torch.device, *, unroll: bool = False) -> None:
        self.order, self.device, self.unroll = order, device, unroll
        self.states: list[tuple[Any, States]] = []

    def constant(self, value: Any) -> Scaled:
        """|value|^order of a number or tensor that carries no paths."""
        values = torch.as_tensor(value, dtype=torch.float64, device=self.device)
        if not postpone() and not bool(values.isfinite().all()):
            raise ValueError(
                f"a constant of shape {tuple(values.shape)} in the forward pass has NaN or infinite entries; "
                "its paths have no finite weight"
            )
        return power_of(values, self.order)

    def recurrence(self, weight: Any, states: States) -> None:
        """Tell of a recurrent matrix and its states."""
        self.states.append((weight, states))


@dataclass(frozen=True)
class Nodes:
    """Which node each entry of a tensor belongs to; for a weight, which parameter entry it is.

    ids: int64, of the tensor's shape. NOTHING (-1) marks a zero. Values of units: node 0 is fixed (inputs, outputs,
    constants). Weights: CONSTANT (-2) marks an entry that no rescaling can change. What is computed from weights alone
    (a sum of biases, a product of matrices) is values of units that only biases enter.
    """

    ids: Tensor
    weight: bool = False

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape; a parameter as it is need not be numbered to tell it."""
        return self.ids.shape


Seen = tuple[list[Any], list[Window]]
"""Operands that are images, or the same at all positions; what is seen of them along each of the last dimensions."""

FIXED, NOTHING, CONSTANT = 0, -1, -2


class NodeGraph(Protocol):
    """What `nodes` methods may ask of the analysis that calls them (network/nodes.py)."""

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

    def normalise(self, ids: Tensor) -> None:
        """What reads these nodes here does not feel their scale."""

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
    slices: Literal["entries", "rows", "sequence", "picked"] | None = None
    """How slices of a batch stay apart: entry by entry, row by row, as sequences, or because entries
    are picked along another dimension. None: not known, paths have to be counted."""
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

    def constants(self, *args: Any, **kwargs: Any) -> Any:
        """The arguments whose values `squared` reads; tensors among them are constants."""
        return args, kwargs

    def windows(self, *args: Any, **kwargs: Any) -> Seen | None:
        """How positions of the result see those of the operands, where all positions see them alike."""
        return None

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        """The arguments as the squared network sees them."""
        return args

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.WEIGHT if all(k is Kind.WEIGHT for k in kinds) else Kind.ACTIVATION

    def shape(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result's shape and dtype, from running the operation itself on tensors without data."""
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
    return max(
        recording.rows, *(s.rule.packed_rows(*s.args, **s.kwargs) for s in recording.steps), 1
    )


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


def per_dimension(value: Any, spatial: int) -> tuple[int, ...]:
    """One number for each dimension, where torch takes one for all of them too."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values if len(values) == spatial else values * spatial


def pointwise(*operands: Any) -> Seen:
    """Each position sees the same position of the operands."""
    return [*operands], [Window()] * max(
        len(a.shape) for a in operands if isinstance(a, (Value, Tensor))
    )


def as_scaled(net: Squared, value: Any) -> Scaled:
    """The operand itself where it carries paths, else |value|^order."""
    return value if isinstance(value, Scaled) else net.constant(value)


def contraction(
    net: Squared, product: Callable[..., Tensor], x: Any, w: Any, *, last: bool = False
) -> Scaled:
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
    return operand.shape

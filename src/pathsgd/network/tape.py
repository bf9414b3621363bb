"""A recorded forward pass: values, steps, and the interpreter that walks through them.

    Recording = inputs, parameters  --steps-->  output

A `Value` is one tensor of the pass without its data; a `Step` is one operation from values to
values. Nothing depends on the values of the weights: one recording serves every later pass at the
same shapes. `interpret` walks through the steps; what a pass computes (sums over paths, node
numbers, positions of entries) is up to the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor


class Kind(enum.Enum):
    """What a path-carrying tensor is: it decides what may be multiplied with what."""

    INPUT = "input"
    """Input nodes, possibly rearranged: the starts of all paths."""
    WEIGHT = "weight"
    """Made of parameters alone: edges, or a bias (an edge from a node of value one)."""
    ACTIVATION = "activation"
    """Values of units: no two of these may be multiplied."""


@dataclass(eq=False, slots=True)
class Value:
    """One tensor of a recorded forward pass: what it is and its shape, no data."""

    kind: Kind
    shape: torch.Size
    dtype: torch.dtype


Product = list[list[Value]]
"""A product is a list of factors; a factor is the list of operands that are added to form it.

At most one factor may be values of units.
"""


@dataclass(frozen=True)
class Step:
    """One recorded operation; its arguments hold `Value`s for tensors that carry paths."""

    operation: str
    rule: Any
    """The `rules.Rule` of the operation; rules lie above this module."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    where: str

    @cached_property
    def operands(self) -> list[Value]:
        """The values among the arguments."""
        return values_in((self.args, self.kwargs))

    @cached_property
    def made(self) -> list[Value]:
        """The values among the results."""
        return [value for value in self.outputs if value is not None]


@dataclass
class Recording:
    """All steps from the inputs to the outputs, and the parameters they use.

    outputs: the values to measure. returned: all values that the model returns, measured or not;
        none where the user chose the outputs.
    structural: the numbers of the inputs whose values are part of what is recorded (masks, lengths,
        edges).
    rows: how many examples it was made with.
    branches_at_random: whether random numbers decide which operations the forward pass has.
    """

    inputs: list[Value] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    returned: list[Value] = field(default_factory=list)
    structural: frozenset[int] = frozenset()
    rows: int = 1
    branches_at_random: bool = False

    @cached_property
    def reached(self) -> frozenset[str]:
        """Parameters from which steps lead to a measured output."""
        wanted = set(self.outputs)
        for step in reversed(self.steps):
            if any(value in wanted for value in step.made):
                wanted.update(step.operands)
        return frozenset(name for name, value in self.parameters.items() if value in wanted)

    @cached_property
    def names(self) -> dict[Value, str]:
        """The parameters' names by their values."""
        return {value: name for name, value in self.parameters.items()}


T = TypeVar("T")


def interpret(
    recording: Recording, known: dict[Value, T], carry: Callable[[Step, Any, Any], Any]
) -> dict[Value, T]:
    """Walk through the steps; the results of `carry` stand for their outputs.

    known: what stands for inputs and parameters; outputs are added to it, and it is returned.
    carry: (step, args, kwargs) -> one result, or a tuple of them; `args` and `kwargs` are the
        step's with `known` in the place of values. None, for a step or one of its outputs: unknown.

    Steps with an operand that is unknown are passed over, and so are all that depend on them.
    """
    for step in recording.steps:
        if not all(operand in known for operand in step.operands):
            continue
        args, kwargs = map_leaves(
            lambda a: known[a] if isinstance(a, Value) else a, (step.args, step.kwargs)
        )
        results = carry(step, args, kwargs)
        pairs = zip(step.outputs, results if isinstance(results, (tuple, list)) else (results,))
        known.update({v: result for v, result in pairs if v is not None and result is not None})
    return known


_BRANCHES = frozenset({tuple, list, dict})


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """function of every leaf of arguments, which are plain tuples, lists and dicts of leaves."""
    kind = type(tree)
    if kind not in _BRANCHES:
        return function(tree)
    # Leaves are met here, not by one more call each: to record a long loop is to walk through
    # thousands of these.
    if kind is dict:
        return {
            k: map_leaves(function, b) if type(b) in _BRANCHES else function(b)
            for k, b in tree.items()
        }
    mapped = [map_leaves(function, b) if type(b) in _BRANCHES else function(b) for b in tree]
    return tuple(mapped) if kind is tuple else mapped


def leaves(tree: Any) -> list[Any]:
    """The leaves that `map_leaves` would meet."""
    met: list[Any] = []
    if type(tree) not in _BRANCHES:
        return [tree]
    for branch in tree.values() if type(tree) is dict else tree:
        if type(branch) in _BRANCHES:
            met.extend(leaves(branch))
        else:
            met.append(branch)
    return met


def values_in(tree: Any) -> list[Value]:
    """The values among the leaves."""
    return [a for a in leaves(tree) if isinstance(a, Value)]


# ---- Are two recordings the same network?


def alike(a: Recording, b: Recording) -> bool:
    """Whether two recordings have the same steps, values and constants."""
    if len(a.steps) != len(b.steps) or list(a.parameters) != list(b.parameters) or a.rows != b.rows:
        return False
    if len(a.inputs) != len(b.inputs):
        return False
    twin = dict(zip(a.inputs, b.inputs)) | dict(zip(a.parameters.values(), b.parameters.values()))
    if any(v.shape != w.shape for v, w in twin.items()):
        return False
    for s, t in zip(a.steps, b.steps):
        if s.operation != t.operation or s.where != t.where or len(s.outputs) != len(t.outputs):
            return False
        left, right = leaves((s.args, s.kwargs)), leaves((t.args, t.kwargs))
        if len(left) != len(right) or not all(_same(x, y, twin) for x, y in zip(left, right)):
            return False
        twin |= {v: w for v, w in zip(s.outputs, t.outputs) if v is not None and w is not None}
    measured = [[twin.get(v) for v in values] for values in (a.outputs, a.returned)]
    return measured == [b.outputs, b.returned]


def _same(x: Any, y: Any, twin: dict[Value, Value]) -> bool:
    if isinstance(x, Value):
        return twin.get(x) is y
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return x is y or (isinstance(x, Tensor) and isinstance(y, Tensor) and _equal(x, y))
    return type(x) is type(y) and bool(x == y)


def _equal(x: Tensor, y: Tensor) -> bool:
    is_alike = (x.shape, x.dtype, x.layout) == (y.shape, y.dtype, y.layout)
    return is_alike and bool(torch.equal(x, y))

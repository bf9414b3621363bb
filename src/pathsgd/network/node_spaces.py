"""The free nodes of a model as data: how many there are, and which nodes each parameter joins.

nodes.py finds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.whiten import Lines
from pathsgd.network.rules.base import FIXED
from pathsgd.network.tape import Kind, Recording, Step, Value


@dataclass(frozen=True)
class Edges:
    """For each entry of a parameter, the node it leads to and the node it comes from.

    Both broadcast to the parameter's shape, with size 1 along dimensions in which they are
    constant.
    """

    target: Tensor
    source: Tensor

    @property
    def free(self) -> bool:
        """Whether some rescaling changes some entry."""
        # If one varies along a dimension and the other does not, they differ somewhere.
        is_other_shape = self.target.shape != self.source.shape
        return is_other_shape or bool((self.target != self.source).any())


@dataclass(frozen=True)
class Place:
    """Where a parameter enters units of a stream: the value, and the nodes of its entries.

    A node of a residual stream is one unit for rescaling, wherever the stream is read. What follows
    is different at each place, and so is the derivative of gamma^2 in the unit's path sum. The
    metric needs the derivative at the place where a parameter enters.
    """

    value: Value
    nodes: Tensor

    def per_node(self, derivative: Tensor, count: int) -> Tensor:
        """Sums of a tensor of the value's shape over the entries of each node, (count + 1,)."""
        nodes = self.nodes.to(derivative.device)
        dims = [d for d in range(nodes.dim()) if nodes.shape[d] == 1 and derivative.shape[d] > 1]
        derivative = derivative.sum(dims, keepdim=True) if dims else derivative
        sums = torch.zeros(count + 1, dtype=torch.float64, device=derivative.device)
        return sums.scatter_add_(
            0, nodes.expand(derivative.shape).reshape(-1), derivative.reshape(-1)
        )


@dataclass(frozen=True)
class NodeSpaces:
    """`count` free nodes, numbered 1..count (0 is fixed), and the edges of each parameter.

    names: for each free node, a parameter whose entries lead to it, and the row.
    pinned: for parameters that lead to units which cannot be rescaled, the step that fixes them.
    scale_free: nodes that only normalisations read, with the parameters that lead to them.
    places: where parameters enter units that other parameters enter at other places.
    """

    count: int
    edges: dict[str, Edges]
    names: list[str]
    pinned: dict[str, Step] = field(default_factory=dict)
    scale_free: dict[int, frozenset[str]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def edges_on(self, name: str, device: torch.device) -> Edges:
        """A parameter's edges on the device of its tensors; copied there once."""
        edges = self.edges[name]
        if edges.target.device == device:
            return edges
        return self._kept(  # type: ignore[no-any-return]
            (name, device), lambda: Edges(edges.target.to(device), edges.source.to(device))
        )

    def lines_on(self, name: str, shape: torch.Size, device: torch.device) -> Lines:
        """A parameter's edges as those of a matrix whose rows are its first dimension."""
        return self._kept(  # type: ignore[no-any-return]
            (name, shape, device), lambda: _lines(self.edges_on(name, device), shape)
        )

    def shares_on(self, device: torch.device) -> Tensor:
        """For each node, 1 / the number of nodes of its layer; 1 for the fixed one."""
        return self._kept(device, lambda: self._shares().to(device))  # type: ignore[no-any-return]

    def _shares(self) -> Tensor:
        widths = torch.ones(self.count + 1, dtype=torch.float64)
        for edges in self.edges.values():
            nodes = edges.target.unique()
            widths[nodes] = widths[nodes].clamp(min=float((nodes != FIXED).sum()))
        widths[FIXED] = 1.0
        return widths.reciprocal()

    def are_all_in_order(self, names: tuple[str, ...]) -> bool:
        """Whether the nodes these parameters lead to, one after another, are 1, 2, .., count."""

        def look() -> bool:
            nodes = [n for name in names for n in self.edges[name].target.reshape(-1).tolist()]
            return nodes == list(range(1, self.count + 1))

        return self._kept(names, look)  # type: ignore[no-any-return]

    @cached_property
    def biases(self) -> dict[str, str]:
        """For each bias of a layer, the weight that leads to the same nodes."""
        layers: dict[bytes, str] = {}
        for name, e in self.edges.items():
            if e.target.dim() > 1 and e.target.shape[0] == e.target.numel() > 1 and e.free:
                layers.setdefault(e.target.numpy().tobytes(), name)
        found = {
            name: layers.get(e.target.numpy().tobytes())
            for name, e in self.edges.items()
            if e.target.dim() == 1 and e.target.numel() > 1 and bool((e.source == FIXED).all())
        }
        return {bias: weight for bias, weight in found.items() if weight is not None}


def _lines(edges: Edges, shape: torch.Size) -> Lines:
    rows, repeat = (shape[0] if shape else 1), math.prod(shape[2:])
    columns = math.prod(shape[1:])
    found: dict[str, Tensor] = {}
    for end, ids in (("out", edges.target), ("into", edges.source)):
        along = [d for d, size in enumerate(ids.shape) if size > 1]
        if not bool((ids != FIXED).any()):
            continue  # inputs, outputs and units that are never rescaled have no factor
        if along == [0] or (not along and columns == 1):
            found["row_" + end] = ids.reshape(-1).expand(rows).contiguous()
        elif along == [1] or not along:
            found["column_" + end] = ids.reshape(-1).expand(columns // repeat).contiguous()
        else:
            flat = [ids.expand(shape).reshape(-1) for ids in (edges.target, edges.source)]
            return Lines(1, rows * columns, 1, None, None, *(ids.contiguous() for ids in flat))
    return Lines(rows, columns, repeat, **found)


# ---- places --------------------------------------------------------------------------------------


def several_places(
    recording: Recording, nodes_of: Callable[[Value], Tensor | None]
) -> dict[str, Place]:
    """The places of the parameters that enter units which others enter at other places.

    nodes_of: the node numbers of a value's entries; None if they are not known.

    A parameter that enters at many places itself (a loop, tied layers) has none.
    """
    places = {
        name: Place(uses[0], at)
        for name, uses in _uses(recording).items()
        if len(uses) == 1 and (at := nodes_of(uses[0])) is not None
    }
    first: dict[int, Value] = {}
    several: set[int] = set()
    entered = {name: set(place.nodes.unique().tolist()) - {FIXED} for name, place in places.items()}
    for name, nodes in entered.items():
        value = places[name].value
        several |= {node for node in nodes if first.setdefault(node, value) is not value}
    return {name: place for name, place in places.items() if entered[name] & several}


def _uses(recording: Recording) -> dict[str, list[Value]]:
    """The values of units that each parameter is applied to compute."""
    made_of = {v: frozenset([name]) for name, v in recording.parameters.items()}
    uses: dict[str, list[Value]] = {name: [] for name in recording.parameters}
    for step in recording.steps:
        names = frozenset().union(*(made_of.get(v, frozenset()) for v in step.operands))
        # The states of a recurrent layer enter its next step: the layer counts as several places.
        loops = bool(step.rule.recurrent(*step.args, **step.kwargs))
        for value in step.made if names else ():
            if value.kind is Kind.WEIGHT:
                made_of[value] = names
            else:
                for name in names:
                    uses[name] += [value, value] if loops else [value]
    return uses

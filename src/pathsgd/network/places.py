"""Where parameters enter units: a unit of a residual stream is entered at several places.

A node is one unit for rescaling, wherever along a stream it is looked at. What lies ahead of it is not the same
everywhere: behind the last block only the output reads the stream. So the derivative of gamma^2 in the unit's path
sum differs from place to place, and the metric needs it where a parameter enters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.network.rules.base import FIXED
from pathsgd.network.tape import Kind, Recording, Value


@dataclass(frozen=True)
class Place:
    """What a parameter is applied to make, and the nodes of its entries, broadcastable to its shape."""

    value: Value
    nodes: Tensor

    def per_node(self, derivative: Tensor, count: int) -> Tensor:
        """The sums of a tensor of the value's shape over the entries of each node, (count + 1,)."""
        nodes = self.nodes.to(derivative.device)
        dims = [d for d in range(nodes.dim()) if nodes.shape[d] == 1 and derivative.shape[d] > 1]
        derivative = derivative.sum(dims, keepdim=True) if dims else derivative
        sums = torch.zeros(count + 1, dtype=torch.float64, device=derivative.device)
        return sums.scatter_add_(
            0, nodes.expand(derivative.shape).reshape(-1), derivative.reshape(-1)
        )


def several_places(
    recording: Recording, nodes_of: Callable[[Value], Tensor | None]
) -> dict[str, Place]:
    """The places of those parameters that enter units which others enter elsewhere.

    nodes_of: the numbers of the nodes of a value's entries; None if they are not known.

    A parameter that enters at many places itself (a loop, tied layers) has none of its own.
    """
    once = {name: uses[0] for name, uses in _uses(recording).items() if len(uses) == 1}
    places = {
        name: Place(value, at)
        for name, value in once.items()
        if (at := nodes_of(value)) is not None
    }
    first: dict[int, Value] = {}
    several: set[int] = set()
    entered = {name: set(place.nodes.unique().tolist()) - {FIXED} for name, place in places.items()}
    for name, nodes in entered.items():
        several |= {
            node
            for node in nodes
            if first.setdefault(node, places[name].value) is not places[name].value
        }
    return {name: place for name, place in places.items() if entered[name] & several}


def _uses(recording: Recording) -> Mapping[str, list[Value]]:
    """The values of units that each parameter is applied to make; all calls of a recurrent layer are one use."""
    made_of: dict[Value, frozenset[str]] = {
        v: frozenset([name]) for name, v in recording.parameters.items()
    }
    uses: dict[str, list[Value]] = {name: [] for name in recording.parameters}
    for step in recording.steps:
        names = frozenset().union(*(made_of.get(v, frozenset()) for v in step.operands))
        # Inside a recurrent layer paths go on from step to step: the derivative in its result is not all there is.
        loops = bool(step.rule.recurrent(*step.args, **step.kwargs))
        for value in (v for v in step.outputs if v is not None and names):
            if value.kind is Kind.WEIGHT:
                made_of[value] = names
            else:
                for name in names:
                    uses[name] += [value, value] if loops else [value]
    return uses

"""What is known of a model's free nodes: how many there are, and which of them parameters join; nodes.py finds it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.whiten import Lines
from pathsgd.network.places import Place
from pathsgd.network.rules.base import FIXED
from pathsgd.network.tape import Step


@dataclass(frozen=True)
class Edges:
    """Per parameter entry, the node it enters and the node it leaves; broadcastable to the parameter's shape.

    Of size 1 along every dimension in which they do not change.
    """

    out: Tensor
    into: Tensor

    @property
    def free(self) -> bool:
        """Whether some entry changes under some rescaling."""
        # One that varies along a dimension differs somewhere from one that does not.
        return self.out.shape != self.into.shape or bool((self.out != self.into).any())


@dataclass(frozen=True)
class NodeSpaces:
    """The freedom of a model: `count` free nodes numbered 1..count (0 is fixed), and each parameter's edges."""

    count: int
    edges: dict[str, Edges]
    names: list[str]
    """For each free node, where it lives: the parameter whose entries enter it, and the row."""
    pinned: dict[str, Step] = field(default_factory=dict)
    """For parameters that lead into units which cannot be rescaled, the step that fixes those units."""
    scale_free: dict[int, frozenset[str]] = field(default_factory=dict)
    """Nodes whose scale nothing feels, because only normalisations read them, and the parameters that enter them."""

    places: dict[str, Place] = field(default_factory=dict)
    """Where parameters enter units that others enter at other places."""

    _elsewhere: dict[Any, Edges] = field(default_factory=dict, repr=False)
    _lines: dict[Any, Lines] = field(default_factory=dict, repr=False)
    _shares: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)
    _in_order: dict[tuple[str, ...], bool] = field(default_factory=dict, repr=False)

    def edges_on(self, name: str, device: torch.device) -> Edges:
        """A parameter's edges on the device of its tensors; copied there once."""
        edges = self.edges[name]
        if device.type == "cpu":
            return edges
        if (name, device) not in self._elsewhere:
            self._elsewhere[name, device] = Edges(edges.out.to(device), edges.into.to(device))
        return self._elsewhere[name, device]

    def lines_on(self, name: str, shape: torch.Size, device: torch.device) -> Lines:
        """A parameter's edges as those of a matrix, rows its first dimension; one row where they do not lie so."""
        if (name, shape, device) not in self._lines:
            self._lines[name, shape, device] = _lines(self.edges_on(name, device), shape)
        return self._lines[name, shape, device]

    def shares_on(self, device: torch.device) -> Tensor:
        """For each node, 1 / the nodes of its layer, those that one parameter enters; 1 for the fixed one."""
        if device not in self._shares:
            widths = torch.ones(self.count + 1, dtype=torch.float64)
            for edges in self.edges.values():
                nodes = edges.out.unique()
                widths[nodes] = widths[nodes].clamp(min=float((nodes != FIXED).sum()))
            widths[FIXED] = 1.0
            self._shares[device] = widths.reciprocal().to(device)
        return self._shares[device]

    def are_all_in_order(self, names: tuple[str, ...]) -> bool:
        """Whether the nodes that these parameters enter, one after another, are all free nodes in their order."""
        if names not in self._in_order:
            nodes = [node for name in names for node in self.edges[name].out.reshape(-1).tolist()]
            self._in_order[names] = nodes == list(range(1, self.count + 1))
        return self._in_order[names]

    @cached_property
    def biases(self) -> dict[str, str]:
        """For every bias of a layer the weight beside it: one enters the rows of the other, from nodes of value one."""
        layers: dict[bytes, str] = {}
        for name, e in self.edges.items():
            if e.out.dim() > 1 and e.out.shape[0] == e.out.numel() > 1 and e.free:
                layers.setdefault(e.out.numpy().tobytes(), name)
        alone = {
            name: e.out
            for name, e in self.edges.items()
            if e.out.dim() == 1 and bool((e.into == FIXED).all())
        }
        found = {
            name: layers.get(out.numpy().tobytes())
            for name, out in alone.items()
            if out.numel() > 1
        }
        return {bias: weight for bias, weight in found.items() if weight is not None}


def _lines(edges: Edges, shape: torch.Size) -> Lines:
    rows, repeat = (shape[0] if shape else 1), math.prod(shape[2:])
    columns = math.prod(shape[1:])
    found: dict[str, Tensor] = {}
    for end, ids in (("out", edges.out), ("into", edges.into)):
        along = [d for d, size in enumerate(ids.shape) if size > 1]
        if not bool((ids != FIXED).any()):
            continue  # inputs, outputs and what never scales have nothing to say
        if along == [0] or (not along and columns == 1):
            found["row_" + end] = ids.reshape(-1).expand(rows).contiguous()
        elif along == [1] or not along:
            found["column_" + end] = ids.reshape(-1).expand(columns // repeat).contiguous()
        else:
            flat = [part.expand(shape).reshape(-1) for part in (edges.out, edges.into)]
            return Lines(1, rows * columns, 1, None, None, *flat)
    return Lines(rows, columns, repeat, **found)

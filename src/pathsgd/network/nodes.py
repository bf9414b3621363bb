"""The free nodes of a model: which units can be rescaled without changing its function.

Multiply everything that enters a unit by alpha > 0 and divide everything that leaves it: the
function is unchanged. With shared weights only some alphas are feasible: all uses of a parameter
must scale alike. Every entry of every activation gets a node number; operations tie numbers
together (a residual sum, a recurrence, a weight used at many positions), inputs and outputs are
node 0 and fixed. What remains are the free nodes, and each parameter entry knows the node it comes
from and the node it enters:

    p <- p * alpha[target] / alpha[source]

All uses of one parameter entry are taken to join the same two nodes. That finds every rescaling of
the usual nets; where uses could scale alike between different nodes (a weight tied across layers),
it finds fewer than exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathsgd.network.node_spaces import Edges, NodeSpaces, several_places
from pathsgd.network.rules.base import CONSTANT, FIXED, NOTHING, Nodes
from pathsgd.network.tape import Kind, Recording, Step, Value, interpret, map_leaves


def spaces_of(
    recording: Recording, parameters: Mapping[str, Tensor], *, exact: bool = True
) -> NodeSpaces:
    """The free nodes of a recorded model. Parameters that no step uses have fixed edges.

    exact: only rescalings that keep everything the model returns exactly. Otherwise those that the
        metric is covariant under: they may change results that are not measured, and the scale of a
        channel before a batch normalisation that trains, which changes the effect of its eps.
    """
    graph = _Graph(recording, exact)
    labels = _components(graph.count, graph.ties)
    spaces, numbers = _number(labels, graph.uses, graph.normalised)
    spaces.places.update(several_places(recording, lambda value: graph.numbered(value, numbers)))
    spaces.pinned.update(graph.what_pins())
    for name, p in parameters.items():
        if name not in spaces.edges:
            fixed = torch.full([1] * p.dim(), FIXED)
            spaces.edges[name] = Edges(fixed, fixed)
    return spaces


class _Whole(Nodes):
    """A whole parameter. Its entries are numbered only for rules that read the numbers."""

    name: str
    start: int
    size: torch.Size
    weight = True

    def __init__(self, name: str, start: int, size: torch.Size) -> None:
        vars(self).update(name=name, start=start, size=size)

    @property
    def shape(self) -> torch.Size:
        return self.size

    @property
    def ids(self) -> Tensor:  # type: ignore[override]
        return torch.arange(self.start, self.start + math.prod(self.size)).reshape(self.size)


class _Graph:
    """Collects node numbers and ties along the recorded steps (rules/base.py: NodeGraph)."""

    def __init__(self, recording: Recording, exact: bool) -> None:
        self.exact = exact
        self.count = FIXED + 1
        self.ties: list[tuple[np.ndarray, np.ndarray]] = []
        self._step: Step | None = None
        self._fixed_by: list[tuple[np.ndarray, Step]] = []
        """Nodes that a step tied to the fixed one; inputs and outputs are not among them."""
        self.uses: dict[str, tuple[Tensor, Tensor]] = {}
        self.normalised: list[Tensor] = []
        self.result_shape = torch.Size()
        fixed = torch.tensor(FIXED)
        self._known: dict[Value, Nodes] = {
            v: Nodes(fixed.expand(v.shape)) for v in recording.inputs
        }
        self._ends = np.cumsum([math.prod(value.shape) for value in recording.parameters.values()])
        starts = [0, *self._ends.tolist()]
        parameters = recording.parameters.items()
        self._whole = [_Whole(n, at, v.shape) for at, (n, v) in zip(starts, parameters)]
        """The parameters; their entries are numbered end to end."""
        self._known.update(zip(recording.parameters.values(), self._whole))
        interpret(recording, self._known, self._carry)
        self._step = None
        for output in (*recording.outputs, *(recording.returned if exact else ())):
            if output in self._known:
                self._fix(self.activation(self._known[output]))

    def numbered(self, value: Value, numbers: Tensor) -> Tensor | None:
        """The nodes of a value of units in their final numbers, given for the present ones."""
        nodes = self._known.get(value)
        if nodes is None or nodes.weight:
            return None
        return numbers[_thin(nodes.ids).clamp(min=FIXED)]

    def what_pins(self) -> dict[str, Step]:
        """For every parameter whose units a step in between has fixed, the first such step."""
        if not self._fixed_by:
            return {}
        ties = [tie for tie in map(_without_fixed, self.ties) if len(tie[0])]
        labels = _components(self.count, ties)
        found: dict[str, Step] = {}
        for name, (out, _) in self.uses.items():
            out = _thin(out)
            # Not np.unique: its first call imports numpy's masked arrays.
            units = np.zeros(len(labels), dtype=bool)
            units[labels[out[out > FIXED].numpy()]] = True
            step = next((s for ids, s in self._fixed_by if units[labels[ids]].any()), None)
            if step is not None:
                found[name] = step
        return found

    def _carry(self, step: Step, args: Any, kwargs: Any) -> Any:
        self._step = step
        self.result_shape = next(v.shape for v in step.outputs if v is not None)
        args, kwargs = map_leaves(lambda a: a.cpu() if isinstance(a, Tensor) else a, (args, kwargs))
        results = step.rule.nodes(self, *args, **kwargs)
        every = (results,) if isinstance(results, Nodes) else results
        for value, result in zip(step.outputs, every):
            if value is not None and result is not None:
                assert result.shape == value.shape, step
                assert not result.weight or value.kind is Kind.WEIGHT, step
        return results

    # ---- what rules call -------------------------------------------------------------------------

    def activation(self, operand: Any) -> Tensor:
        if not isinstance(operand, Nodes):
            return torch.where(torch.as_tensor(operand) == 0, NOTHING, FIXED)
        if not operand.weight:
            return operand.ids
        ids = self.fresh(*operand.shape)  # a bias: edges from the node of value one
        self.edges(operand, ids, FIXED)
        if isinstance(operand, _Whole):
            return ids
        return torch.where(operand.ids == NOTHING, NOTHING, ids)

    def alike(self, *operands: Any) -> tuple[list[Tensor], bool]:
        if any(isinstance(o, Nodes) and not o.weight for o in operands):
            return [self.activation(o) for o in operands], False
        weights = [o.ids if isinstance(o, Nodes) else _constants(o) for o in operands]
        return weights, True

    def fresh(self, *shape: int) -> Tensor:
        ids = torch.arange(self.count, self.count + math.prod(shape)).reshape(shape)
        self.count += ids.numel()
        return ids

    def tie(self, a: Tensor, b: Tensor) -> None:
        a, b = _without_repeats(*torch.broadcast_tensors(a, b))
        a, b = _without_products(a, b)
        keep = (a >= 0) & (b >= 0) & (a != b)
        if bool(keep.any()):
            a, b = a[keep], b[keep]
            self.ties.append((a.numpy(), b.numpy()))
            fixed = (a == FIXED) | (b == FIXED)
            if self._step is not None and bool(fixed.any()):
                others = (a + b)[fixed]  # FIXED is 0
                self._fixed_by.append((others.numpy(), self._step))

    def merge(self, ids: Tensor, dims: Iterable[int]) -> Tensor:
        for dim in dims:
            if ids.shape[dim] > 1 and ids.stride(dim) == 0:
                ids = ids.narrow(dim, 0, 1)
            elif ids.shape[dim] > 1:
                one = ids.amax(dim, keepdim=True)  # a zero (-1) has no node: another entry's
                self.tie(ids, one)
                ids = one
        return ids

    def edges(self, weight: Any, target: Tensor | int, source: Tensor | int) -> None:
        target, source = torch.as_tensor(target), torch.as_tensor(source)
        if not isinstance(weight, Nodes) or not weight.weight:
            self._constant_edges(weight, target, source)
            return
        target, source = target.expand(weight.shape), source.expand(weight.shape)
        if isinstance(weight, _Whole):
            self._use(weight.name, target, source)
        else:
            self._use_view(weight.ids.reshape(-1), target.reshape(-1), source.reshape(-1))

    def _constant_edges(self, weight: Any, out: Tensor, into: Tensor) -> None:
        """Weights that no rescaling changes: fixed numbers, or values of units that get fixed."""
        ids = self.activation(weight)
        self._fix(ids)
        self.tie(torch.where(ids == NOTHING, NOTHING, out), into)

    def pinned(self, *operands: Any) -> Nodes:
        for operand in operands:
            if isinstance(operand, Nodes) and operand.weight:
                self.edges(operand, FIXED, FIXED)
            elif isinstance(operand, Nodes):
                self._fix(operand.ids)
        weight = not any(isinstance(o, Nodes) and not o.weight for o in operands)
        return Nodes(torch.tensor(CONSTANT if weight else FIXED).expand(self.result_shape), weight)

    def normalise(self, ids: Tensor) -> None:
        self.normalised.append(ids.reshape(-1).unique())

    # ---- uses of parameters ----------------------------------------------------------------------

    def _use(self, name: str, out: Tensor, into: Tensor) -> None:
        """A whole parameter was used between these nodes; all its uses must be between the same."""
        known = self.uses.setdefault(name, (out, into))
        self.uses[name] = (self._agree(known[0], out), self._agree(known[1], into))

    def _agree(self, old: Tensor, new: Tensor) -> Tensor:
        if old is new:
            return old
        self.tie(old, new)
        return torch.where(old >= 0, old, new) if bool((_thin(old) < 0).any()) else old

    def _use_view(self, entries: Tensor, out: Tensor, into: Tensor) -> None:
        """A view of parameters was used: write to the entries that it shows."""
        constant = entries == CONSTANT
        self.tie(out[constant], into[constant])
        owner = torch.from_numpy(np.searchsorted(self._ends, entries.numpy(), side="right"))
        for index in owner[entries >= 0].unique().tolist():
            mine, whole = (owner == index) & (entries >= 0), self._whole[index]
            name, unknown = whole.name, torch.full(whole.shape, NOTHING)
            sides, positions = self.uses.get(name, (unknown, unknown)), entries[mine] - whole.start
            self.uses[name] = (
                self._write(sides[0], positions, out[mine]),
                self._write(sides[1], positions, into[mine]),
            )

    def _write(self, side: Tensor, positions: Tensor, new: Tensor) -> Tensor:
        flat = side.reshape(-1).clone()
        self.tie(flat[positions], new)
        flat[positions] = torch.where(new >= 0, new, flat[positions])
        self.tie(flat[positions], new)  # a view may show an entry twice (expand)
        return flat.reshape(side.shape)

    def _fix(self, *ids: Tensor) -> None:
        for i in ids:
            self.tie(i, torch.tensor(FIXED))


def _constants(operand: Any) -> Tensor:
    return torch.where(torch.as_tensor(operand) == 0, NOTHING, CONSTANT)


def _without_repeats(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Drop dimensions along which both are expanded: the same pairs over and over."""
    for dim in range(a.dim()):
        if a.shape[dim] > 1 and a.stride(dim) == 0 and b.stride(dim) == 0:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _without_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """If every entry of a row is tied to every entry of a column, ties to the first are enough."""
    wide = [d for d in range(a.dim()) if a.shape[d] > 1]
    only_a, only_b = ([d for d in wide if x.stride(d) == 0] for x in (b, a))
    has_zeros = any(bool((_thin(x) < 0).any()) for x in (a, b))  # a zero (-1) ties nothing
    if not only_a or not only_b or has_zeros:
        return a, b
    firsts = [[_first(x, dims).reshape(-1) for dims in (only_a, only_b)] for x in (a, b)]
    return torch.cat(firsts[0]), torch.cat(firsts[1])


def _first(ids: Tensor, dims: Iterable[int]) -> Tensor:
    for dim in dims:
        ids = ids.narrow(dim, 0, 1)
    return ids


def _without_fixed(tie: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    keep = (tie[0] != FIXED) & (tie[1] != FIXED)
    return tie[0][keep], tie[1][keep]


def _components(count: int, ties: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Connected components: each node gets the smallest number that it is tied to."""
    labels = np.arange(count)
    if not ties:
        return labels
    a, b = (np.concatenate(side) for side in zip(*ties))
    while True:
        before = labels.copy()
        low = np.minimum(labels[a], labels[b])
        for ends in (labels[a], labels[b]):
            np.minimum.at(labels, ends, low)
        np.minimum.at(labels, a, low)
        np.minimum.at(labels, b, low)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels


def _number(
    labels: np.ndarray, uses: dict[str, tuple[Tensor, Tensor]], normalised: list[Tensor]
) -> tuple[NodeSpaces, Tensor]:
    """Number the free nodes 1..count as parameters lead to them; with the numbers of all nodes."""
    table = torch.from_numpy(labels)
    resolved = {
        n: tuple(_compressed(table[_thin(side).clamp(min=FIXED)]) for side in sides)
        for n, sides in uses.items()
    }
    names: list[str] = []
    known = np.full(len(labels), -1)
    known[FIXED] = FIXED
    for name, sides in resolved.items():
        for side in (side.numpy().reshape(-1) for side in sides):
            values, first = np.unique(side, return_index=True)
            rows = np.sort(first[known[values] < 0])
            known[side[rows]] = np.arange(len(names) + 1, len(names) + 1 + len(rows))
            names.extend(f"{name}[{row}]" for row in rows.tolist())
    numbers = torch.from_numpy(known)
    edges = {n: Edges(numbers[out], numbers[into]) for n, (out, into) in resolved.items()}
    scale_free = _scale_free(edges, numbers[table[torch.cat(normalised)]]) if normalised else {}
    spaces = NodeSpaces(len(names), edges, names, scale_free=scale_free)
    return spaces, numbers.clamp(min=FIXED)[table]


def _scale_free(edges: Mapping[str, Edges], normalised: Tensor) -> dict[int, frozenset[str]]:
    """Nodes that are normalised and that no weight leads away from, with their parameters."""
    left = {node for e in edges.values() for node in e.source.unique().tolist()}
    nodes = {node for node in normalised.unique().tolist() if node > FIXED} - left
    entering: dict[int, set[str]] = {node: set() for node in nodes}
    for name, e in edges.items():
        for node in set(e.target.unique().tolist()) & nodes:
            entering[node].add(name)
    return {node: frozenset(names) for node, names in entering.items() if names}


def _thin(ids: Tensor) -> Tensor:
    """Size 1 along every dimension that is expanded."""
    for dim in range(ids.dim()):
        if ids.shape[dim] > 1 and ids.stride(dim) == 0:
            ids = ids.narrow(dim, 0, 1)
    return ids


def _compressed(ids: Tensor) -> Tensor:
    """The same numbers with size 1 along every dimension in which they do not change."""
    for dim in range(ids.dim()):
        first = ids.narrow(dim, 0, 1)
        if ids.shape[dim] > 1 and bool((ids == first).all()):
            ids = first
    return ids.contiguous()

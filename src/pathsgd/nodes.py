"""Feasible node-wise rescalings of a model: found, drawn, applied, and the balanced one.

Multiply everything that enters a unit by alpha > 0 and divide everything that leaves it: the function is unchanged.
With shared weights only some alphas are feasible: all uses of a parameter must scale alike. Every entry of every
activation gets a node number; operations tie numbers together (a residual sum, a recurrence, a weight used at many
positions), inputs and outputs are node 0 and fixed. What remains are the free nodes, and each parameter entry knows
the node it comes from and the node it enters:

    p <- p * alpha[out] / alpha[into]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pathsgd.recording import Output, record
from pathsgd.rules.base import Nodes, Recording, Value

FIXED = 0


@dataclass(frozen=True)
class Edges:
    """Per parameter entry, the node it enters and the node it leaves; broadcastable to the parameter's shape."""

    out: Tensor
    into: Tensor

    @property
    def free(self) -> bool:
        """Whether some entry changes under some rescaling."""
        return bool((self.out != self.into).any())


@dataclass(frozen=True)
class NodeSpaces:
    """The freedom of a model: `count` free nodes numbered 1..count (0 is fixed), and each parameter's edges."""

    count: int
    edges: dict[str, Edges]
    names: list[str]
    """For each free node, where it lives: the parameter whose entries enter it, and the row."""


class _Graph:
    """Collects node numbers and ties while the recorded steps are walked through; see rules/base.py: NodeGraph."""

    def __init__(self, recording: Recording, parameters: Mapping[str, Tensor]) -> None:
        self._next = 1
        self._ties: list[tuple[np.ndarray, np.ndarray]] = []
        self._offsets: dict[str, int] = {}
        self._shapes = {name: parameters[name].shape for name in recording.parameters}
        self._edges: dict[str, tuple[Tensor, Tensor]] = {}
        self.result_shape = torch.Size()
        values: dict[Value, Nodes] = {
            v: Nodes(torch.zeros((), dtype=torch.int64).expand(v.shape)) for v in recording.inputs
        }
        start = 0
        for name, value in recording.parameters.items():
            count = math.prod(value.shape)
            self._offsets[name] = start
            values[value] = Nodes(torch.arange(start, start + count).reshape(value.shape), weight=True)
            start += count
        self._bounds = np.cumsum([math.prod(v.shape) for v in recording.parameters.values()])
        for step in recording.steps:
            first = next(v for v in step.outputs if v is not None)
            self.result_shape = first.shape
            args, kwargs = tree_map(lambda a: values[a] if isinstance(a, Value) else a, (step.args, step.kwargs))
            results = step.rule.nodes(self, *args, **kwargs)
            for out, result in zip(step.outputs, (results,) if isinstance(results, Nodes) else results):
                if out is not None and result is not None:
                    values[out] = result
        assert recording.output is not None
        self.tie(self.activation(values[recording.output]), torch.tensor(FIXED))

    def fresh(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        ids = torch.arange(self._next, self._next + count).reshape(shape)
        self._next += count
        return ids

    def activation(self, operand: Any) -> Tensor:
        if isinstance(operand, Nodes):
            if not operand.weight:
                return operand.ids
            ids = self.fresh(*operand.ids.shape)  # a bias: edges from the node of value one
            self.edges(operand, ids, FIXED)
            return ids
        constant = torch.as_tensor(operand)
        return torch.where(constant == 0, -1, FIXED)

    def tie(self, a: Tensor, b: Tensor) -> None:
        a, b = _without_repeats(*torch.broadcast_tensors(a, b))
        keep = (a >= 0) & (b >= 0) & (a != b)
        if bool(keep.any()):
            self._ties.append((a[keep].numpy(), b[keep].numpy()))

    def per_entry(self, ids: Tensor, dim: int) -> Tensor:
        moved = ids.movedim(dim, -1)
        vector = moved.reshape(-1, moved.shape[-1])
        # A zero entry (-1) says nothing of its node: let the other positions speak.
        one = vector.amax(0)
        self.tie(moved, one)
        return one

    def edges(self, weight: Any, out: Tensor | int, into: Tensor | int) -> None:
        out, into = torch.as_tensor(out), torch.as_tensor(into)
        if not isinstance(weight, Nodes):
            self._fix(out, into)
            return
        out, into = out.expand(weight.ids.shape), into.expand(weight.ids.shape)
        whole = self._whole_parameter(weight.ids)
        if whole is not None:
            self._use(whole, out, into)
            return
        flat = weight.ids.reshape(-1)
        if bool((flat < 0).any()):
            self._fix(out, into)
        owner = np.searchsorted(self._bounds, flat.numpy(), side="right")
        names = list(self._offsets)
        for index in np.unique(owner[flat.numpy() >= 0]):
            self._use_part(names[int(index)], flat, torch.from_numpy((owner == index) & (flat.numpy() >= 0)), out, into)

    def _whole_parameter(self, ids: Tensor) -> str | None:
        first = int(ids.reshape(-1)[0]) if ids.numel() else -1
        for name, offset in self._offsets.items():
            if (
                first == offset
                and ids.shape == self._shapes[name]
                and ids.is_contiguous()
                and int(ids.reshape(-1)[-1]) == offset + ids.numel() - 1
            ):
                return name
        return None

    def _use(self, name: str, out: Tensor, into: Tensor) -> None:
        old_out, old_into = self._edges.get(name, (out, into))
        self.tie(old_out, out)
        self.tie(old_into, into)
        self._edges[name] = (torch.where(old_out >= 0, old_out, out), torch.where(old_into >= 0, old_into, into))

    def _use_part(self, name: str, flat: Tensor, mine: Tensor, out: Tensor, into: Tensor) -> None:
        """A view of a parameter was used: write the nodes to the entries the view shows."""
        shape = self._shapes[name]
        known = self._edges.get(name, (torch.full(shape, -1), torch.full(shape, -1)))
        position = (flat - self._offsets[name])[mine]
        updated = []
        for old, new in zip(known, (out, into)):
            old, new = old.reshape(-1).clone(), new.reshape(-1)[mine]
            self.tie(old[position], new)
            # Entries shown twice by one view (expand) are one parameter: tie their uses as well.
            old[position] = torch.where(new >= 0, new, old[position])
            self.tie(old[position], new)
            updated.append(old.reshape(shape))
        self._edges[name] = (updated[0], updated[1])

    def _fix(self, *ids: Tensor) -> None:
        for i in ids:
            self.tie(i, torch.tensor(FIXED))

    def pinned(self, *operands: Any) -> Nodes:
        weight = all(isinstance(o, Nodes) and o.weight for o in operands if isinstance(o, Nodes))
        for operand in operands:
            if isinstance(operand, Nodes) and operand.weight:
                self.edges(operand, torch.tensor(FIXED), torch.tensor(FIXED))
            elif isinstance(operand, Nodes):
                self._fix(operand.ids)
        fill = -1 if weight else FIXED
        return Nodes(torch.full((), fill, dtype=torch.int64).expand(self.result_shape), weight)

    def solve(self) -> NodeSpaces:
        labels = _components(self._next, self._ties)
        return _number(labels, self._edges, self._shapes)


def _without_repeats(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Drop dimensions along which both are expanded: the same pairs over and over."""
    for dim in range(a.dim()):
        if a.shape[dim] > 1 and a.stride(dim) == 0 and b.stride(dim) == 0:
            a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
    return a, b


def _components(count: int, ties: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Connected components: every node gets the smallest number it is tied to (so whatever is tied to 0 is 0)."""
    labels = np.arange(count)
    if not ties:
        return labels
    a, b = (np.concatenate(side) for side in zip(*ties))
    while True:
        low = np.minimum(labels[a], labels[b])
        before = labels.copy()
        np.minimum.at(labels, labels[a].copy(), low)
        np.minimum.at(labels, labels[b].copy(), low)
        np.minimum.at(labels, a, low)
        np.minimum.at(labels, b, low)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels


def _number(labels: np.ndarray, edges: dict[str, tuple[Tensor, Tensor]], shapes: dict[str, torch.Size]) -> NodeSpaces:
    """Number the free nodes 1..count in the order in which parameters enter them."""
    table = torch.from_numpy(labels)
    resolved = {n: tuple(_compressed(table[side.clamp(min=0)]) for side in pair) for n, pair in edges.items()}
    number, names = {FIXED: FIXED}, []
    for name, (out, into) in resolved.items():
        for side in (out, into):
            for row, label in enumerate(side.reshape(-1).tolist()):
                if label not in number:
                    number[label] = len(number)
                    names.append(f"{name}[{row}]")
    numbers = np.zeros(len(labels), dtype=np.int64)
    for label, n in number.items():
        numbers[label] = n
    renumber = torch.from_numpy(numbers)
    final = {n: Edges(renumber[out], renumber[into]) for n, (out, into) in resolved.items()}
    return NodeSpaces(len(number) - 1, final, names)


def _compressed(ids: Tensor) -> Tensor:
    """The same numbers with size 1 along every dimension in which they do not change."""
    for dim in range(ids.dim()):
        first = ids.narrow(dim, 0, 1)
        if ids.shape[dim] > 1 and bool((ids == first).all()):
            ids = first
    return ids.contiguous()


def spaces_of(recording: Recording, parameters: Mapping[str, Tensor]) -> NodeSpaces:
    """The free nodes of a recorded model. Parameters that no step uses have fixed edges."""
    spaces = _Graph(recording, parameters).solve()
    zero = torch.zeros((), dtype=torch.int64)
    for name, p in parameters.items():
        if name not in spaces.edges:
            spaces.edges[name] = Edges(zero.reshape([1] * p.dim()), zero.reshape([1] * p.dim()))
    return spaces


def node_spaces(model: nn.Module, *inputs: Any, output: Output = None) -> NodeSpaces:
    """The feasible node-wise rescalings of a model: how many free nodes, and how they act on each parameter."""
    return spaces_of(record(model, inputs, output), dict(model.named_parameters()))


def _factors(alpha: Any, count: int) -> Tensor:
    values = torch.as_tensor(alpha, dtype=torch.float64)
    if values.dim() == 0:
        values = values.expand(count)
    if values.shape != (count,):
        raise ValueError(
            f"alpha must be one number or {count} numbers (one per free node), got shape {tuple(values.shape)}"
        )
    if not bool((values > 0).all() and values.isfinite().all()):
        raise ValueError(
            "alpha must be positive and finite: a unit scaled by zero or a negative number is another function"
        )
    return torch.cat([values.new_ones(1), values])


def _apply(parameters: Mapping[str, Tensor], spaces: NodeSpaces, factors: Tensor) -> None:
    with torch.no_grad():
        for name, p in parameters.items():
            edges = spaces.edges[name]
            if edges.free:
                p.mul_((factors[edges.out] / factors[edges.into]).to(p))


def rescale_nodes(model: nn.Module, *inputs: Any, alpha: Any, output: Output = None) -> nn.Module:
    """Rescale the model's units in place: p <- p * alpha[out] / alpha[into]. Returns the model.

    alpha: one positive number per free node (see `node_spaces`), or a single number for all of them.
    """
    parameters = dict(model.named_parameters())
    spaces = spaces_of(record(model, inputs, output), parameters)
    if spaces.count == 0:
        raise ValueError("the model has no free node: every unit is an input, an output or tied to one")
    _apply(parameters, spaces, _factors(alpha, spaces.count))
    return model


def random_rescaling(
    model: nn.Module,
    *inputs: Any,
    low: float = 1e-2,
    high: float = 1e2,
    generator: torch.Generator | None = None,
    output: Output = None,
) -> nn.Module:
    """Rescale every free node in place by a random alpha, log-uniform between low and high. Returns the model."""
    if not 0 < low <= high < math.inf:
        raise ValueError(f"need 0 < low <= high, got low={low}, high={high}")
    parameters = dict(model.named_parameters())
    spaces = spaces_of(record(model, inputs, output), parameters)
    if spaces.count == 0:
        raise ValueError("the model has no free node: every unit is an input, an output or tied to one")
    draw = torch.rand(spaces.count, generator=generator, dtype=torch.float64)
    _apply(parameters, spaces, _factors(torch.exp(math.log(low) + draw * math.log(high / low)), spaces.count))
    return model


def balance(
    model: nn.Module, *inputs: Any, output: Output = None, tolerance: float = 1e-10, max_iterations: int = 10_000
) -> nn.Module:
    """Rescale the model in place to the least sum of squared weights its function allows. Returns the model.

        minimise over alpha  sum_e (w_e alpha[out] / alpha[into])^2

    At the minimum every free node has equal squared weight going in and coming out. The problem is convex in
    log alpha; it is solved node by node (Osborne 1960 for one matrix; Stock et al. 2019 for networks), all nodes at
    once with half steps. Nodes with nothing coming in or going out have no optimum and are left as they are.
    """
    parameters = dict(model.named_parameters())
    spaces = spaces_of(record(model, inputs, output), parameters)
    if spaces.count == 0:
        raise ValueError("the model has no free node: every unit is an input, an output or tied to one")
    log_alpha = torch.zeros(spaces.count + 1, dtype=torch.float64)
    movable = None
    for _ in range(max_iterations):
        into, out = _squared_sums(parameters, spaces, log_alpha)
        if movable is None:
            movable = (into > 0) & (out > 0)
            movable[FIXED] = False
        step = torch.where(movable, 0.25 * (out.clamp(min=1e-300).log() - into.clamp(min=1e-300).log()), 0.0)
        if float(step.abs().max()) < tolerance:
            break
        log_alpha += 0.5 * step
    _apply(parameters, spaces, log_alpha.exp())
    return model


def _squared_sums(parameters: Mapping[str, Tensor], spaces: NodeSpaces, log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Squared weight entering and leaving each node at these alphas; an edge of a node to itself counts in neither."""
    into, out = torch.zeros_like(log_alpha), torch.zeros_like(log_alpha)
    for name, p in parameters.items():
        edges = spaces.edges[name]
        if not edges.free:
            continue
        target, source = (side.expand(p.shape) for side in (edges.out, edges.into))
        weight = p.detach().to(torch.float64).square() * torch.exp(2 * (log_alpha[edges.out] - log_alpha[edges.into]))
        weight = torch.where(target != source, weight, 0.0)
        into.scatter_add_(0, target.reshape(-1), weight.reshape(-1))
        out.scatter_add_(0, source.reshape(-1), weight.reshape(-1))
    return into, out

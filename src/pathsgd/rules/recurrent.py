"""Recurrent layers: torch.nn.RNN(nonlinearity='relu') whole, and one step of it.

    h_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh        squared: the same recurrence, linear, with squared weights

An initial state handed in as a model input is not an input node (MATH: counting it would break the invariance of an
RNN under rescaling); one made of parameters or activations is part of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd import recurrence, scaled
from pathsgd.rules.base import Kind, NodeGraph, Nodes, Refusal, Rule, Squared, Value, as_scaled, contraction, operation
from pathsgd.scaled import Scaled


@dataclass(frozen=True)
class Call:
    """torch.rnn_relu's arguments under names, in its padded or its packed form."""

    x: Any
    batch_sizes: Tensor | None
    hx: Any
    weights: list[Any]
    has_biases: bool
    layers: int
    directions: int
    batch_first: bool

    @staticmethod
    def parse(*args: Any) -> Call:
        if isinstance(args[2], (list, tuple)):
            x, hx, weights, has_biases, layers, _, _, bidirectional, batch_first = args
            return Call(x, None, hx, list(weights), has_biases, layers, 1 + bidirectional, batch_first)
        x, batch_sizes, hx, weights, has_biases, layers, _, _, bidirectional = args
        return Call(x, batch_sizes, hx, list(weights), has_biases, layers, 1 + bidirectional, False)

    def cells(self) -> Iterator[tuple[int, int, list[Any]]]:
        """(layer, direction, [W_ih, W_hh, b_ih, b_hh]) in torch's order."""
        size = 4 if self.has_biases else 2
        for k in range(self.layers * self.directions):
            yield k // self.directions, k % self.directions, self.weights[k * size : (k + 1) * size]


def _preactivation(net: Squared, x: Any, cell: list[Any]) -> Scaled:
    u = contraction(net, torch.nn.functional.linear, x, cell[0], dim=-1)
    for bias in cell[2:]:
        u = scaled.add(u, as_scaled(net, bias))
    return u


def _initial(net: Squared, hx: Any, index: int) -> Scaled | None:
    if isinstance(hx, Scaled):
        return scaled.move(lambda m: m[index], hx)
    return net.constant(hx[index]) if hx is not None and bool(hx[index].any()) else None


def _layer(net: Squared, x: Scaled, cell: list[Any], h0: Scaled | None, backward: bool) -> Scaled:
    """All states of one direction of one layer, (T, B, H)."""
    u = _preactivation(net, x, cell)
    u = Scaled(u.mantissa.expand(x.shape[0], *u.shape[1:]), u.log_scale)
    if backward:
        u = scaled.move(lambda m: m.flip(0), u)
    weight = as_scaled(net, cell[1]).with_one_scale()
    h, sigma = recurrence.states(weight, u, h0, unroll=net.unroll)
    net.recurrence(cell[1], weight, h, h0, sigma)
    return scaled.move(lambda m: m.flip(0), h) if backward else h


def _padded(net: Squared, call: Call, x: Scaled, rows: slice | None = None) -> tuple[Scaled, Scaled]:
    """Output (T, B, directions * H) and final states (layers * directions, B, H) for inputs of one length."""
    finals: list[Scaled] = []
    below = x
    for layer in range(call.layers):
        outputs = []
        for k, direction, cell in call.cells():
            if k != layer:
                continue
            h0 = _initial(net, call.hx, layer * call.directions + direction)
            if h0 is not None and rows is not None:
                h0 = scaled.move(lambda m: m[rows], h0)
            h = _layer(net, below, cell, h0, backward=direction == 1)
            last = 0 if direction == 1 else -1
            finals.append(scaled.move(lambda m, last=last: m[last], h))
            outputs.append(h)
        below = outputs[0] if len(outputs) == 1 else scaled.move(lambda *p: torch.cat(p, -1), *outputs)
    return below, scaled.move(lambda *p: torch.stack(p), *finals)


def _packed_rows(batch_sizes: Tensor) -> list[Tensor]:
    """For each example, where its steps lie in packed data: step t of row b is at offset(t) + b."""
    offsets = torch.cat([batch_sizes.new_zeros(1), batch_sizes.cumsum(0)[:-1]])
    return [offsets[batch_sizes > b] + b for b in range(int(batch_sizes[0]))]


def _packed(net: Squared, call: Call, x: Scaled, batch_sizes: Tensor) -> tuple[Scaled, Scaled]:
    rows = _packed_rows(batch_sizes)
    outs, finals = [], []
    for b, where in enumerate(rows):
        sequence = scaled.move(lambda m, where=where: m[where][:, None], x)
        out, final = _padded(net, call, sequence, slice(b, b + 1))
        outs.append(scaled.move(lambda m: m[:, 0], out))
        finals.append(final)
    order = torch.cat(rows).argsort()
    out = scaled.move(lambda *p: torch.cat(p)[order], *outs)
    return out, scaled.move(lambda *p: torch.cat(p, 1), *finals)


def _not_an_input(hx: Any) -> Any:
    return None if isinstance(hx, Value) and hx.kind is Kind.INPUT else hx


@operation("rnn_relu")
class RecurrentLayer(Rule):
    summary = "a ReLU RNN: a linear recurrence with squared weights, in closed form"
    multiplies = True

    def check(self, *args: Any) -> None:
        call = Call.parse(*args)
        if call.x.shape[0 if not call.batch_first else 1] == 0:
            raise Refusal("the sequence is empty; give example inputs with at least one step")

    def factors(self, *args: Any, **kwargs: Any) -> list[list[Value]]:
        call = Call.parse(*args)
        groups = [[call.x, call.hx], *([w] for w in call.weights)]
        return [[v for v in group if isinstance(v, Value)] for group in groups]

    def repeats(self, *args: Any, **kwargs: Any) -> int:
        call = Call.parse(*args)
        return call.x.shape[1 if call.batch_first else 0] if call.batch_sizes is None else len(call.batch_sizes)

    def packed_rows(self, *args: Any, **kwargs: Any) -> int:
        sizes = Call.parse(*args).batch_sizes
        return 1 if sizes is None else int(sizes[0])

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        at = 1 if isinstance(args[2], (list, tuple)) else 2
        return (*args[:at], _not_an_input(args[at]), *args[at + 1 :])

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        call = Call.parse(*args)
        hidden = call.weights[1].shape[1]
        if call.weights[0].shape[1] != call.x.shape[-1]:
            raise RuntimeError(f"the RNN expects {call.weights[0].shape[1]} input features, got {call.x.shape[-1]}")
        out = call.x.new_empty((*call.x.shape[:-1], hidden * call.directions))
        batch = int(call.batch_sizes[0]) if call.batch_sizes is not None else call.x.shape[0 if call.batch_first else 1]
        return out, call.x.new_empty((call.layers * call.directions, batch, hidden))

    def squared(self, net: Squared, *args: Any) -> tuple[Scaled, Scaled]:
        call = Call.parse(*args)
        x = as_scaled(net, call.x)
        if call.batch_sizes is not None:
            return _packed(net, call, x, call.batch_sizes)
        if call.batch_first:
            x = scaled.move(lambda m: m.transpose(0, 1), x)
        out, final = _padded(net, call, x)
        return (scaled.move(lambda m: m.transpose(0, 1), out) if call.batch_first else out), final

    def nodes(self, graph: NodeGraph, *args: Any) -> tuple[Nodes, Nodes]:
        call = Call.parse(*args)
        below, finals = graph.activation(call.x), []
        for layer in range(call.layers):
            outputs = []
            for k, direction, cell in call.cells():
                if k != layer:
                    continue
                h = _cell_nodes(graph, below, call.hx, layer * call.directions + direction, cell)
                outputs.append(h)
                finals.append(h)
            below = torch.cat(outputs).expand(*below.shape[:-1], -1)
        rows = int(call.batch_sizes[0]) if call.batch_sizes is not None else below.shape[0 if call.batch_first else 1]
        return Nodes(below), Nodes(torch.stack(finals)[:, None].expand(-1, rows, -1))


def _cell_nodes(graph: NodeGraph, x: Tensor, hx: Any, index: int | None, cell: list[Any]) -> Tensor:
    """The hidden nodes of one cell: tied over time, and to the initial state where that carries paths."""
    shape = cell[1].ids.shape if isinstance(cell[1], Nodes) else cell[1].shape
    h = graph.fresh(shape[0])
    graph.edges(cell[0], h[:, None], graph.per_entry(x, -1))
    graph.edges(cell[1], h[:, None], h)
    for bias in cell[2:]:
        graph.edges(bias, h, 0)
    if hx is not None:
        start = graph.activation(hx)
        start = start if index is None else start[index]
        graph.tie(start, h.expand_as(start))
    return h


@operation("rnn_relu_cell")
class RecurrentCell(Rule):
    summary = "one step of a ReLU RNN: squared weights"
    multiplies = True

    def factors(self, x: Any, hx: Any, *weights: Any, **kwargs: Any) -> list[list[Value]]:
        return [[v for v in group if isinstance(v, Value)] for group in ([x, hx], *([w] for w in weights))]

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        return (args[0], _not_an_input(args[1]), *args[2:])

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        x, hx, w_ih, w_hh = args[:4]
        if w_ih.shape[1] != x.shape[-1]:
            raise RuntimeError(f"the RNN cell expects {w_ih.shape[1]} input features, got {x.shape[-1]}")
        return x.new_empty((*x.shape[:-1], w_hh.shape[0]))

    def squared(
        self, net: Squared, x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Scaled:
        biases = [b for b in (b_ih, b_hh) if b is not None]
        u = _preactivation(net, x, [w_ih, w_hh, *biases])
        if not isinstance(hx, Scaled) and (hx is None or not bool(hx.any())):
            return u
        return scaled.add(u, contraction(net, torch.nn.functional.linear, hx, w_hh, dim=-1))

    def nodes(
        self, graph: NodeGraph, x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Nodes:
        ids = graph.activation(x)
        h = _cell_nodes(graph, ids, hx, None, [w_ih, w_hh, *(b for b in (b_ih, b_hh) if b is not None)])
        return Nodes(h.expand(*ids.shape[:-1], -1))

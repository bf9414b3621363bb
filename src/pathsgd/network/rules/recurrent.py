"""Recurrent layers: torch.nn.RNN(nonlinearity='relu') whole, and one step of it.

    h_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh        squared: linear, with squared weights

An initial state handed in as a model input is not an input node: counting it would break the
invariance of an RNN under rescaling. One made of parameters or activations is part of the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic import recurrence, scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import (
    NodeGraph,
    Nodes,
    Refusal,
    Rule,
    Squared,
    as_scaled,
    contraction,
    operation,
)
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Kind, Product, Value, values_in


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
            return Call(
                x, None, hx, list(weights), has_biases, layers, 1 + bidirectional, batch_first
            )
        x, batch_sizes, hx, weights, has_biases, layers, _, _, bidirectional = args
        return Call(x, batch_sizes, hx, list(weights), has_biases, layers, 1 + bidirectional, False)

    def cell(self, layer: int, direction: int) -> list[Any]:
        """[W_ih, W_hh, b_ih, b_hh]; without biases, or with one if a loop was made a layer."""
        size = len(self.weights) // (self.layers * self.directions)
        start = self.index(layer, direction) * size
        return self.weights[start : start + size]

    def index(self, layer: int, direction: int) -> int:
        """Where torch keeps this cell among initial and final states."""
        return layer * self.directions + direction

    def cells(self) -> Iterator[list[Any]]:
        for layer in range(self.layers):
            for direction in range(self.directions):
                yield self.cell(layer, direction)

    @property
    def steps(self) -> int:
        return (
            self.x.shape[1 if self.batch_first else 0]
            if self.batch_sizes is None
            else len(self.batch_sizes)
        )

    @property
    def rows(self) -> int:
        if self.batch_sizes is not None:
            return int(self.batch_sizes[0])
        return self.x.shape[0 if self.batch_first else 1]


def _preactivation(net: Squared, x: Any, w_ih: Any, biases: list[Any]) -> Scaled:
    u = contraction(net, F.linear, x, w_ih, last=True)
    for bias in biases:
        u = scaled.add(u, as_scaled(net, bias))
    return u


def _initial(net: Squared, hx: Any, index: int) -> Scaled | None:
    if isinstance(hx, Scaled):
        return scaled.move(lambda m: m[index], hx)
    is_zero = hx is None or not (scaled.postpone() or bool(hx[index].any()))
    return None if is_zero else net.constant(hx[index])


def _layer(net: Squared, x: Scaled, cell: list[Any], h0: Scaled | None, backward: bool) -> Scaled:
    """All states of one direction of one layer, (T, B, H)."""
    u = _preactivation(net, x, cell[0], cell[2:])
    if backward:
        u = scaled.move(lambda m: m.flip(0), u)
    states = recurrence.states(as_scaled(net, cell[1]).with_one_scale(), u, h0, unroll=net.unroll)
    net.states.append((cell[1], states))
    h = states.as_scaled()
    return scaled.move(lambda m: m.flip(0), h) if backward else h


def _padded(
    net: Squared, call: Call, x: Scaled, rows: slice = slice(None)
) -> tuple[Scaled, Scaled]:
    """Output (T, B, directions * H) and final states (layers * directions, B, H)."""
    finals: list[Scaled] = []
    below = x
    for layer in range(call.layers):
        outputs = []
        for direction in range(call.directions):
            h0 = _initial(net, call.hx, call.index(layer, direction))
            h0 = None if h0 is None else scaled.move(lambda m: m[rows], h0)
            h = _layer(net, below, call.cell(layer, direction), h0, backward=direction == 1)
            finals.append(scaled.move(lambda m, last=-1 if direction == 0 else 0: m[last], h))
            outputs.append(h)
        below = (
            outputs[0] if len(outputs) == 1 else scaled.move(lambda *p: torch.cat(p, -1), *outputs)
        )
    return below, scaled.move(lambda *p: torch.stack(p), *finals)


def _packed(net: Squared, call: Call, x: Scaled, batch_sizes: Tensor) -> tuple[Scaled, Scaled]:
    """Row by row: step t of row b lies at offset(t) + b in packed data."""
    offsets = torch.cat([batch_sizes.new_zeros(1), batch_sizes.cumsum(0)[:-1]])
    rows = [offsets[batch_sizes > b] + b for b in range(int(batch_sizes[0]))]
    outs, finals = [], []
    for b, where in enumerate(rows):
        sequence = scaled.move(lambda m, where=where: m[where][:, None], x)
        out, final = _padded(net, call, sequence, slice(b, b + 1))
        outs.append(scaled.move(lambda m: m[:, 0], out))
        finals.append(final)
    order = torch.cat(rows).argsort()
    return scaled.move(lambda *p: torch.cat(p)[order], *outs), scaled.move(
        lambda *p: torch.cat(p, 1), *finals
    )


def _not_an_input(hx: Any) -> Any:
    return None if isinstance(hx, Value) and hx.kind is Kind.INPUT else hx


class _Recurrent(Rule):
    multiplies = True

    kind = Kind.ACTIVATION


@operation("rnn_relu")
class RecurrentLayer(_Recurrent):
    summary = "a ReLU RNN: a linear recurrence with squared weights, in closed form"
    slices = "sequence"

    def check(self, *args: Any) -> None:
        call = Call.parse(*args)
        if call.steps == 0:
            raise Refusal("the sequence is empty; give example inputs with at least one step")

    def products(self, *args: Any) -> list[Product]:
        call = Call.parse(*args)
        biases = [cell[2:] for cell in call.cells()]
        matrices = [w for cell in call.cells() for w in cell[:2]]
        return [[values_in([call.x, call.hx, biases]), *([w] for w in values_in(matrices))]]

    def recurrent(self, *args: Any) -> list[Value]:
        return values_in([cell[1] for cell in Call.parse(*args).cells()])

    def repeats(self, *args: Any) -> int:
        return Call.parse(*args).steps

    def packed_rows(self, *args: Any) -> int:
        call = Call.parse(*args)
        return 1 if call.batch_sizes is None else call.rows

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        at = 1 if isinstance(args[2], (list, tuple)) else 2
        return (*args[:at], _not_an_input(args[at]), *args[at + 1 :])

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        call = Call.parse(*args)
        hidden = call.weights[1].shape[1]
        if call.weights[0].shape[1] != call.x.shape[-1]:
            raise RuntimeError(
                f"the RNN expects {call.weights[0].shape[1]} input features, got {call.x.shape[-1]}"
            )
        out = call.x.new_empty((*call.x.shape[:-1], hidden * call.directions))
        return out, call.x.new_empty((call.layers * call.directions, call.rows, hidden))

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
        below = graph.activation(call.x)
        start = None if call.hx is None else graph.activation(call.hx)
        finals: list[Tensor] = []
        for layer in range(call.layers):
            outputs = []
            for direction in range(call.directions):
                h0 = None if start is None else start[call.index(layer, direction)]
                outputs.append(_cell_nodes(graph, below, h0, call.cell(layer, direction)))
            finals += outputs
            below = torch.cat(outputs).expand(*below.shape[:-1], -1)
        return Nodes(below), Nodes(torch.stack(finals)[:, None].expand(-1, call.rows, -1))


def _cell_nodes(graph: NodeGraph, x: Tensor, h0: Tensor | None, cell: list[Any]) -> Tensor:
    """The hidden nodes of one cell, (H,), tied over time and to an initial state with paths."""
    h = graph.fresh(cell[1].shape[0])
    into = graph.merge(x, range(x.dim() - 1)).reshape(-1)
    graph.edges(cell[0], h[:, None], into)
    graph.edges(cell[1], h[:, None], h)
    for bias in cell[2:]:
        add_nodes(graph, Nodes(h), bias)
    if h0 is not None:
        graph.tie(h0, h.expand_as(h0))
    return h


@operation("rnn_relu_cell")
class RecurrentCell(_Recurrent):
    summary = "one step of a ReLU RNN: squared weights"
    slices = "rows"

    def products(
        self, x: Any, hx: Any, w_ih: Any, w_hh: Any, *args: Any, **kwargs: Any
    ) -> list[Product]:
        return [[[v] for v in values_in(pair)] for pair in ((x, w_ih), (hx, w_hh))]

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        return (args[0], _not_an_input(args[1]), *args[2:])

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        x, _, w_ih, w_hh = args[:4]
        if w_ih.shape[1] != x.shape[-1]:
            raise RuntimeError(
                f"the RNN cell expects {w_ih.shape[1]} input features, got {x.shape[-1]}"
            )
        return x.new_empty((*x.shape[:-1], w_hh.shape[0]))

    def squared(
        self,
        net: Squared,
        x: Any,
        hx: Any,
        w_ih: Any,
        w_hh: Any,
        b_ih: Any = None,
        b_hh: Any = None,
    ) -> Scaled:
        u = _preactivation(net, x, w_ih, [b for b in (b_ih, b_hh) if b is not None])
        if not isinstance(hx, Scaled) and (hx is None or not (scaled.postpone() or bool(hx.any()))):
            return u
        return scaled.add(u, contraction(net, F.linear, hx, w_hh, last=True))

    def nodes(self, graph: NodeGraph, x: Any, hx: Any, *cell: Any, **kwargs: Any) -> Nodes:
        ids, h0 = graph.activation(x), None if hx is None else graph.activation(hx)
        weights = [w for w in (*cell, *kwargs.values()) if w is not None]
        h = _cell_nodes(graph, ids, h0, weights)
        return Nodes(h.expand(*ids.shape[:-1], -1))

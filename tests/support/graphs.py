"""Explicit networks for cases that oracle.build has no builder for, drawn node by node."""

from __future__ import annotations

import numpy as np

from oracle import GraphBuilder, Layout, Network

Drawn = tuple[Network, Layout]


def hand_loop(inputs: int, hidden: int, outputs: int, steps: int, every_step: bool) -> Drawn:
    draw = GraphBuilder()
    w_in, w_rec = draw.parameter("w_in", hidden, inputs), draw.parameter("w_rec", hidden, hidden)
    w_out = draw.parameter("w_out", outputs, hidden)
    x, h = draw.inputs("x", steps, inputs), draw.hidden("h", steps, hidden)
    for t in range(steps):
        draw.dense(x[t], h[t], w_in)
        if t:
            draw.dense(h[t - 1], h[t], w_rec)
    for t in range(steps) if every_step else [steps - 1]:
        draw.dense(h[t], draw.outputs(f"y{t}", outputs), w_out)
    return draw.finish()


def learnt_start(inputs: int, hidden: int, steps: int) -> Drawn:
    draw = GraphBuilder()
    start = draw.parameter("start", 1, 1, hidden)
    w_ih, w_hh = (
        draw.parameter("rnn.weight_ih_l0", hidden, inputs),
        draw.parameter("rnn.weight_hh_l0", hidden, hidden),
    )
    biases = [draw.parameter(f"rnn.bias_{kind}_l0", hidden) for kind in ("ih", "hh")]
    out, out_bias = draw.parameter("out.weight", 1, hidden), draw.parameter("out.bias", 1)
    x, h = draw.inputs("x", steps, inputs), draw.hidden("h", steps + 1, hidden)
    draw.bias(h[0], start[0, 0])
    for t in range(steps):
        draw.dense(x[t], h[t + 1], w_ih)
        draw.dense(h[t], h[t + 1], w_hh)
        for bias in biases:
            draw.bias(h[t + 1], bias)
    y = draw.outputs("y", 1)
    draw.dense(h[steps], y, out)
    draw.bias(y, out_bias)
    return draw.finish()


def tied_autoencoder(inputs: int, hidden: int) -> Drawn:
    draw = GraphBuilder()
    weight, bias = draw.parameter("weight", hidden, inputs), draw.parameter("bias", hidden)
    x, h, y = draw.inputs("x", inputs), draw.hidden("h", hidden), draw.outputs("y", inputs)
    draw.dense(x, h, weight)
    draw.bias(h, bias)
    draw.dense(h, y, weight.T)
    return draw.finish()


def tied_language_model(vocabulary: int, width: int, steps: int) -> Drawn:
    draw = GraphBuilder()
    table = draw.parameter("embedding.weight", vocabulary, width)
    w_ih, w_hh = (
        draw.parameter("rnn.weight_ih_l0", width, width),
        draw.parameter("rnn.weight_hh_l0", width, width),
    )
    biases = [draw.parameter(f"rnn.bias_{kind}_l0", width) for kind in ("ih", "hh")]
    out_bias = draw.parameter("decoder.bias", vocabulary)
    words, embedded = (
        draw.inputs("word", steps, vocabulary),
        draw.hidden("e", steps, width, linear=True),
    )
    h, y = draw.hidden("h", steps, width), draw.outputs("y", steps, vocabulary)
    for t in range(steps):
        draw.dense(words[t], embedded[t], table.T)
        draw.dense(embedded[t], h[t], w_ih)
        if t:
            draw.dense(h[t - 1], h[t], w_hh)
        for bias in biases:
            draw.bias(h[t], bias)
        draw.dense(h[t], y[t], table)
        draw.bias(y[t], out_bias)
    return draw.finish()


def called_twice(width: int) -> Drawn:
    draw = GraphBuilder()
    weight, bias = draw.parameter("layer.weight", width, width), draw.parameter("layer.bias", width)
    out, out_bias = draw.parameter("out.weight", 1, width), draw.parameter("out.bias", 1)
    below = draw.inputs("x", width)
    for name in ("first", "second"):
        h = draw.hidden(name, width)
        draw.dense(below, h, weight)
        draw.bias(h, bias)
        below = h
    y = draw.outputs("y", 1)
    draw.dense(below, y, out)
    draw.bias(y, out_bias)
    return draw.finish()


def between(windows: list[list[int]], weight: float, units: int = 4) -> Drawn:
    """models.Between: output k joins the entries windows[k] by edges of one fixed weight."""
    draw = GraphBuilder()
    first, first_bias = (
        draw.parameter("first.weight", units, 2),
        draw.parameter("first.bias", units),
    )
    second, second_bias = (
        draw.parameter("second.weight", 2, len(windows)),
        draw.parameter("second.bias", 2),
    )
    x, h = draw.inputs("x", 2), draw.hidden("h", units)
    joined, y = draw.hidden("joined", len(windows), linear=True), draw.outputs("y", 2)
    draw.dense(x, h, first)
    draw.bias(h, first_bias)
    for target, window in zip(joined, windows):
        for source in window:
            draw.constant(h[source], target, weight)
    draw.dense(joined, y, second)
    draw.bias(y, second_bias)
    return draw.finish()


def batch_norm(mean: np.ndarray, std: np.ndarray) -> Drawn:
    """Linear, batch norm with fixed statistics, ReLU, Linear."""
    units = len(mean)
    draw = GraphBuilder()
    first, first_bias = draw.parameter("0.weight", units, 2), draw.parameter("0.bias", units)
    gain, shift = draw.parameter("1.weight", units), draw.parameter("1.bias", units)
    second, second_bias = draw.parameter("3.weight", 2, units), draw.parameter("3.bias", 2)
    x, z, n = (
        draw.inputs("x", 2),
        draw.hidden("z", units, linear=True),
        draw.hidden("n", units, linear=True),
    )
    h, y = draw.hidden("h", units), draw.outputs("y", 2)
    one = draw.inputs("one")  # the node of value one from which the fixed edges -mean/std come
    draw.dense(x, z, first)
    draw.bias(z, first_bias)
    for j in range(units):
        draw.constant(z[j], n[j], 1 / std[j])
        draw.constant(one, n[j], -mean[j] / std[j])
        draw.edge(n[j], h[j], gain[j])
    draw.bias(h, shift)
    draw.dense(h, y, second)
    draw.bias(y, second_bias)
    return draw.finish()


def two_inputs() -> Drawn:
    """[A x + B y]_+ read out by C."""
    draw = GraphBuilder()
    a, b, c = draw.parameter("a", 3, 2), draw.parameter("b", 3, 1), draw.parameter("c", 1, 3)
    x, y, h = draw.inputs("x", 2), draw.inputs("y", 1), draw.hidden("h", 3)
    draw.dense(x, h, a)
    draw.dense(y, h, b)
    draw.dense(h, draw.outputs("z", 1), c)
    return draw.finish()

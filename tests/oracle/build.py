"""Networks as explicit graphs: a small drawing board, and the usual architectures drawn on it.

Every builder returns (network, layout). A layout maps a parameter's name to the indices of its
entries in the vector p, in an array shaped as torch keeps that parameter: p[layout["weight_hh_l0"]]
is the (H, H) recurrent matrix. `pack` and `unpack` convert between p and named arrays. Parameters
are numbered in the order they are declared, which is torch's order, row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from .graph import Array, Edge, Network

Layout = dict[str, Array]


def pack(layout: Layout, values: Mapping[str, ArrayLike]) -> Array:
    """The parameter vector p with p[layout[name]] = values[name]; names and shapes must match."""
    if set(values) != set(layout):
        raise ValueError(f"expected values for {sorted(layout)}, got {sorted(values)}")
    p = np.zeros(1 + max((int(index.max()) for index in layout.values()), default=-1))
    for name, index in layout.items():
        value = np.asarray(values[name], dtype=np.float64)
        if value.shape != index.shape:
            raise ValueError(f"{name} has shape {value.shape}, the layout expects {index.shape}")
        p[index] = value
    return p


def unpack(layout: Layout, p: ArrayLike) -> dict[str, Array]:
    """The named arrays of a vector over parameters (p itself, a gradient, a kappa)."""
    vector = np.asarray(p)
    return {name: vector[index] for name, index in layout.items()}


class GraphBuilder:
    """Draws a network node by node: declare parameters and nodes, add edges, then `finish()`.

    Nodes and parameters are number arrays of any shape: time steps or channels are axes.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._edges: list[Edge] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._biases: list[int] = []
        self._linear: list[int] = []
        self._layout: Layout = {}
        self._parameter_count = 0

    def parameter(self, name: str, *shape: int) -> Array:
        """Declare a parameter; its entries' indices in p, in this shape."""
        if name in self._layout:
            raise ValueError(
                f"parameter {name!r} is declared already; to share it, use its indices again"
            )
        index = self._parameter_count + np.arange(int(np.prod(shape))).reshape(shape)
        self._parameter_count += index.size
        self._layout[name] = index
        return index

    def inputs(self, name: str, *shape: int) -> Array:
        """Declare input nodes; x follows the order of declaration, row by row."""
        return self._add_nodes(name, shape, self._inputs)

    def outputs(self, name: str, *shape: int) -> Array:
        """Declare output nodes, which are linear units."""
        return self._add_nodes(name, shape, self._outputs)

    def hidden(self, name: str, *shape: int, linear: bool = False) -> Array:
        """Declare ReLU units, or units without ReLU."""
        return self._add_nodes(name, shape, self._linear if linear else [])

    def edge(self, source: int, target: int, parameter: int) -> None:
        """An edge whose weight is p[parameter]."""
        self._edges.append(Edge(int(source), int(target), parameter=int(parameter)))

    def constant(self, source: int, target: int, value: float = 1.0) -> None:
        """An edge of fixed weight: a skip connection, an average, a frozen scale."""
        self._edges.append(Edge(int(source), int(target), constant=float(value)))

    def bias(self, targets: Array, index: Array) -> None:
        """One edge per target from the bias node (value 1); index: parameters in targets' shape."""
        if not self._biases:
            self._add_nodes("1", (), self._biases)
        for target, parameter in zip(targets.flat, index.flat, strict=True):
            self.edge(self._biases[0], target, parameter)

    def dense(self, sources: Array, targets: Array, weight: Array) -> None:
        """Edges source k -> target j with parameter weight[j, k]; transposed: a layer backwards."""
        if weight.shape != (targets.size, sources.size):
            raise ValueError(
                f"a weight from {sources.size} to {targets.size} nodes cannot have shape "
                f"{weight.shape}"
            )
        for j, target in enumerate(targets.flat):
            for k, source in enumerate(sources.flat):
                self.edge(source, target, weight[j, k])

    def finish(self) -> tuple[Network, Layout]:
        """The network drawn so far and the layout of its parameters."""
        network = Network(
            node_count=len(self._names),
            parameter_count=self._parameter_count,
            edges=tuple(self._edges),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            biases=tuple(self._biases),
            linear=frozenset(self._linear),
            names=tuple(self._names),
        )
        return network, self._layout

    def _add_nodes(self, name: str, shape: tuple[int, ...], role: list[int]) -> Array:
        nodes = len(self._names) + np.arange(int(np.prod(shape))).reshape(shape)
        for place in np.ndindex(*shape):
            self._names.append(f"{name}[{','.join(map(str, place))}]" if shape else name)
        role.extend(nodes.ravel().tolist())
        return nodes


def mlp(widths: Sequence[int], bias: bool = True) -> tuple[Network, Layout]:
    """Linear, ReLU, ..., Linear with the given widths, input and output included.

    Names as in torch.nn.Sequential(Linear, ReLU, Linear, ...):
    "0.weight" (n1, n0), "0.bias" (n1), "2.weight", ...
    """
    if len(widths) < 2:
        raise ValueError(f"an MLP needs at least an input and an output width, got {list(widths)}")
    draw = GraphBuilder()
    layer = draw.inputs("x", widths[0])
    for depth, width in enumerate(widths[1:]):
        last = depth == len(widths) - 2
        following = draw.outputs("y", width) if last else draw.hidden(f"h{depth}", width)
        _linear(draw, layer, following, str(2 * depth), bias)
        layer = following
    return draw.finish()


def rnn(
    inputs: int,
    hidden: Sequence[int],
    outputs: int | None,
    steps: int,
    bias: bool = True,
    every_step: bool = False,
    bidirectional: bool = False,
) -> tuple[Network, Layout]:
    """A deep ReLU RNN unfolded over `steps` steps, then a linear layer on the top states.

        h^k_t = [W_ih^k h^{k-1}_t + b_ih^k + W_hh^k h^k_{t-1} + b_hh^k]_+ ,   h^k_0 = 0

    hidden: units of each layer. outputs=None reads the top states themselves (edges of weight one).
    Input order (steps, inputs). Output order (steps, outputs) with every_step, else (1, outputs).
    Bidirectional layers concatenate both directions at the same step, as torch does: "last step"
    reads the backward state that has seen only the last input.
    Names: weight_ih_l{k} (H, I), weight_hh_l{k} (H, H), bias_ih_l{k} (H), bias_hh_l{k} (H), with
    the
    suffix _reverse for the backward direction, out.weight (O, H), out.bias (O).
    """
    if steps < 1 or not hidden:
        raise ValueError(
            f"an RNN needs a layer and a time step, got hidden={list(hidden)} and steps={steps}"
        )
    draw = GraphBuilder()
    below = draw.inputs("x", steps, inputs)
    for k, units in enumerate(hidden):
        directions = ("", "_reverse") if bidirectional else ("",)
        below = np.concatenate(
            [_recurrence(draw, below, k, units, bias, suffix) for suffix in directions], axis=1
        )
    read = below if every_step else below[-1:]
    if outputs is None:
        for source, target in zip(read.flat, draw.outputs("y", *read.shape).flat):
            draw.constant(source, target)
        return draw.finish()
    weight = draw.parameter("out.weight", outputs, read.shape[1])
    out_bias = draw.parameter("out.bias", outputs) if bias else None
    for states, y in zip(read, draw.outputs("y", len(read), outputs)):
        draw.dense(states, y, weight)
        if out_bias is not None:
            draw.bias(y, out_bias)
    return draw.finish()


def _recurrence(
    draw: GraphBuilder, below: Array, k: int, units: int, bias: bool, suffix: str
) -> Array:
    """One direction of one recurrent layer over the nodes below (T, I); its states, (T, H)."""
    w_ih = draw.parameter(f"weight_ih_l{k}{suffix}", units, below.shape[1])
    w_hh = draw.parameter(f"weight_hh_l{k}{suffix}", units, units)
    biases = [draw.parameter(f"bias_{kind}_l{k}{suffix}", units) for kind in ("ih", "hh") if bias]
    states = draw.hidden(f"h{k}{suffix}", len(below), units)
    times = range(len(below)) if suffix == "" else range(len(below) - 1, -1, -1)
    previous = None
    for t in times:
        draw.dense(below[t], states[t], w_ih)
        for index in biases:
            draw.bias(states[t], index)
        if previous is not None:
            draw.dense(states[previous], states[t], w_hh)
        previous = t
    return states


def conv1d(
    in_channels: int,
    out_channels: int,
    kernel: int,
    length: int,
    padding: int = 0,
    stride: int = 1,
    outputs: int = 1,
    bias: bool = True,
) -> tuple[Network, Layout]:
    """Conv1d, ReLU, flatten, Linear. Zero padding is the absence of edges.

    Input order (in_channels, length). Names: conv.weight (O, I, K), conv.bias (O), linear.weight
    (outputs, O * L), linear.bias (outputs).
    """
    positions = (length + 2 * padding - kernel) // stride + 1
    if positions < 1:
        raise ValueError(
            f"a kernel of {kernel} does not fit a length of {length} with padding {padding}"
        )
    draw = GraphBuilder()
    x = draw.inputs("x", in_channels, length)
    weight = draw.parameter("conv.weight", out_channels, in_channels, kernel)
    conv_bias = draw.parameter("conv.bias", out_channels) if bias else None
    h = draw.hidden("h", out_channels, positions)
    for o, position, i, k in np.ndindex(out_channels, positions, in_channels, kernel):
        place = position * stride + k - padding
        if 0 <= place < length:
            draw.edge(int(x[i, place]), int(h[o, position]), int(weight[o, i, k]))
    if conv_bias is not None:
        draw.bias(h, np.repeat(conv_bias, positions))
    _linear(draw, h, draw.outputs("y", outputs), "linear", bias)
    return draw.finish()


def chain(uses: int) -> tuple[Network, Layout]:
    """One path that uses a single weight s `uses` times between others: o_0 s o_1 s ... s o_uses.

    Names: shared (), others (uses + 1).
    Its kappa of s is k(2k - 1) s^(2k-2) prod_j o_j^2 with k = uses.
    """
    draw = GraphBuilder()
    shared, others = draw.parameter("shared"), draw.parameter("others", uses + 1)
    nodes = [draw.inputs("x"), *draw.hidden("h", 2 * uses), draw.outputs("y")]
    for place, (source, target) in enumerate(pairwise(nodes)):
        draw.edge(int(source), int(target), int(shared) if place % 2 else int(others[place // 2]))
    return draw.finish()


def residual(
    inputs: int,
    width: int,
    inner: int,
    outputs: int,
    blocks: int = 1,
    bias: bool = True,
    relu_after: bool = True,
) -> tuple[Network, Layout]:
    """Stem, residual blocks, head:  h <- [h + W2 [W1 h]_+]_+  (no outer [.]_+ if not relu_after).

    The skip connection is an edge of constant weight one: h before and after it scale alike.
    Names: stem.weight (width, inputs), block{k}.first.weight (inner, width),
    block{k}.second.weight (width, inner), head.weight (outputs, width), and a bias for each.
    """
    draw = GraphBuilder()
    h = draw.hidden("stem", width)
    _linear(draw, draw.inputs("x", inputs), h, "stem", bias)
    for k in range(blocks):
        inside, after = (
            draw.hidden(f"inner{k}", inner),
            draw.hidden(f"h{k}", width, linear=not relu_after),
        )
        _linear(draw, h, inside, f"block{k}.first", bias)
        _linear(draw, inside, after, f"block{k}.second", bias)
        for source, target in zip(h, after):
            draw.constant(source, target)
        h = after
    _linear(draw, h, draw.outputs("y", outputs), "head", bias)
    return draw.finish()


def random_network(
    rng: np.random.Generator,
    inputs: int = 2,
    hidden: int = 4,
    outputs: int = 2,
    parameters: int = 5,
) -> tuple[Network, Layout]:
    """A random graph with shared parameters, bias edges, constants and linear units. Name: p."""
    draw = GraphBuilder()
    index = draw.parameter("p", parameters)
    nodes = list(draw.inputs("x", inputs))
    for v in range(hidden + outputs):
        is_output = v >= hidden
        node = (
            draw.outputs(f"y{v}") if is_output else draw.hidden(f"h{v}", linear=rng.random() < 0.2)
        )
        for source in nodes:
            if rng.random() < 0.15:
                draw.constant(source, int(node), rng.normal())
            elif rng.random() < 0.6:
                draw.edge(source, int(node), rng.choice(index))
        if rng.random() < 0.5:
            draw.bias(node, rng.choice(index, size=()))
        if not is_output:
            nodes.append(int(node))
    return draw.finish()


def _linear(draw: GraphBuilder, sources: Array, targets: Array, name: str, bias: bool) -> None:
    """A linear layer with parameters {name}.weight (targets, sources) and {name}.bias (targets)."""
    draw.dense(sources, targets, draw.parameter(f"{name}.weight", targets.size, sources.size))
    if bias:
        draw.bias(targets, draw.parameter(f"{name}.bias", targets.size))

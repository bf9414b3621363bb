"""Units and sums: ReLU and its relatives, additions, products with constants or elementwise weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pathsgd import scaled
from pathsgd.rules.base import Kind, NodeGraph, Nodes, Refusal, Rule, Squared, Value, as_scaled, operation
from pathsgd.scaled import Scaled


@operation("relu")
class Unit(Rule):
    """max(z, 0): everything in the squared network is nonnegative, so it is the identity there."""

    summary = "a ReLU unit: paths pass with weight 1"

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    def squared(self, net: Squared, x: Scaled, *args: Any, **kwargs: Any) -> Scaled:
        return x

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        return Nodes(graph.activation(x))


@operation("leaky_relu")
class LeakyUnit(Unit):
    """max(z, 0) + slope * min(z, 0): positively homogeneous; a path passes with the larger squared slope, max(1, s^2).

    For |slope| <= 1 that is 1, as for a ReLU, and at slope 1 it is a linear unit's 1.
    """

    summary = "a leaky unit: paths pass with the larger of its two squared slopes"

    def squared(self, net: Squared, x: Scaled, negative_slope: float = 0.01, *args: Any, **kwargs: Any) -> Scaled:
        return x.times(max(1.0, abs(negative_slope) ** net.order))


@operation("prelu")
class LearntLeakyUnit(Unit):
    """As leaky_relu, the slope a parameter (one, or one per channel in dimension 1)."""

    summary = "a leaky unit with a learnt slope: paths pass with max(1, slope^2)"

    def squared(self, net: Squared, x: Scaled, weight: Any, *args: Any, **kwargs: Any) -> Scaled:
        slope = as_scaled(net, weight).rescaled_to(torch.zeros((), dtype=torch.float64)).mantissa
        if slope.numel() > 1:
            slope = slope.reshape([1, -1] + [1] * (x.mantissa.dim() - 2))
        return x.times(slope.clamp(min=1.0))


@operation(
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda",
    "neg", "negative", "positive", "requires_grad", "identity", "data.__get__",
)  # fmt: skip
class Identity(Unit):
    """Dropout in its inference form, casts, copies, sign changes: the same paths."""

    summary = "the identity on paths"
    aliases = True

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return next(iter(kinds))

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        return x


def add_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """A sum has one scale: the nodes of its terms are the same nodes."""
    if all(isinstance(x, Nodes) and x.weight for x in (a, b)):
        return graph.pinned(a, b)
    left, right = torch.broadcast_tensors(graph.activation(a), graph.activation(b))
    graph.tie(left, right)
    return Nodes(torch.where(left >= 0, left, right))


def multiply_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """An elementwise product: constants leave nodes as they are, a weight leads to nodes of its own."""
    first, second = (a, b) if isinstance(a, Nodes) and not a.weight else (b, a)
    if not isinstance(first, Nodes):
        first, second = second, first
    if not isinstance(second, Nodes):
        shape = torch.broadcast_shapes(first.ids.shape, torch.as_tensor(second).shape)
        return Nodes(first.ids.expand(shape), first.weight)
    if first.weight or not second.weight:
        return graph.pinned(a, b)
    # The weight may be shared over dimensions it does not have: one node per entry of the weight, before and after.
    shape = torch.broadcast_shapes(first.ids.shape, second.ids.shape)
    into = first.ids.expand(shape)
    for dim in range(len(shape)):
        offset = dim - (len(shape) - second.ids.dim())
        if shape[dim] > 1 and (offset < 0 or second.ids.shape[offset] == 1):
            one = into.narrow(dim, 0, 1)
            graph.tie(into, one.expand_as(into))
            into = one
    out = graph.fresh(*into.shape)
    weight = Nodes(second.ids.expand(into.shape) if second.ids.dim() <= into.dim() else second.ids, weight=True)
    graph.edges(weight, out, into)
    return Nodes(out.expand(shape))


@operation("add", "__add__", "__radd__", "__iadd__", "sub", "subtract", "__sub__", "__rsub__", "__isub__", "rsub")
class Add(Rule):
    """Paths of a sum are the paths of its terms; a constant term is an edge of fixed weight from a node of value 1."""

    summary = "a sum: paths of all terms"

    def squared(self, net: Squared, a: Any, b: Any, *, alpha: float = 1) -> Scaled:
        right = as_scaled(net, b)
        return scaled.add(as_scaled(net, a), right if alpha == 1 else right.times(abs(alpha) ** net.order))

    def nodes(self, graph: NodeGraph, a: Any, b: Any, *, alpha: float = 1) -> Nodes:
        return add_nodes(graph, a, b)


@operation("mul", "multiply", "__mul__", "__rmul__", "__imul__")
class Multiply(Rule):
    """Elementwise product with a constant (fixed weights) or with a parameter (one edge per entry)."""

    summary = "an elementwise product with fixed or learnt weights, squared"
    multiplies = True

    def squared(self, net: Squared, a: Any, b: Any, **kwargs: Any) -> Scaled:
        return scaled.multiply(torch.mul, as_scaled(net, a), as_scaled(net, b))

    def nodes(self, graph: NodeGraph, a: Any, b: Any, **kwargs: Any) -> Nodes:
        return multiply_nodes(graph, a, b)


@operation("div", "divide", "true_divide", "__truediv__", "__itruediv__")
class Divide(Rule):
    """Division by a constant: fixed weights 1/c."""

    summary = "division by a constant: fixed weights, squared"
    multiplies = True

    def check(self, a: Any, b: Any, rounding_mode: str | None = None, **kwargs: Any) -> None:
        if isinstance(b, Value):
            raise Refusal("dividing by an activation or a parameter is not a path; divide by a constant or multiply")
        if rounding_mode is not None:
            raise Refusal("rounding is not positively homogeneous; drop rounding_mode")

    def squared(self, net: Squared, a: Any, b: Any, **kwargs: Any) -> Scaled:
        inverse = net.constant(1.0 / b)
        return scaled.multiply(torch.mul, as_scaled(net, a), inverse)

    def nodes(self, graph: NodeGraph, a: Any, b: Any, **kwargs: Any) -> Nodes:
        return multiply_nodes(graph, a, b)


@operation("masked_fill")
class MaskedFill(Rule):
    """Entries replaced by zero: their paths end."""

    summary = "masking with zero: masked paths end"

    def check(self, x: Any, mask: Any, value: Any) -> None:
        if isinstance(value, Value) or value != 0:
            raise Refusal("only masking with zero keeps the network homogeneous; fill with 0")

    def squared(self, net: Squared, x: Scaled, mask: Tensor, value: Any) -> Scaled:
        return scaled.move(lambda m: m.masked_fill(mask, 0.0), x)

    def nodes(self, graph: NodeGraph, x: Nodes, mask: Tensor, value: Any) -> Nodes:
        return Nodes(x.ids.masked_fill(mask, -1), x.weight)


def _dims(x: Any, dim: Any) -> list[int]:
    if dim is None or dim == ():
        return list(range(len(x.shape)))
    return [d % max(1, len(x.shape)) for d in ([dim] if isinstance(dim, int) else dim)]


@operation("sum")
class Sum(Rule):
    """Sum over dimensions: paths of all entries."""

    summary = "a sum over dimensions: paths of all entries"

    def squared(self, net: Squared, x: Scaled, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Scaled:
        dims = _dims(x, dim if dim is not None else kwargs.get("axis"))
        if not dims:
            return x
        x = x.merged(dims)
        scale = x.log_scale if x.uniform else x.log_scale.sum(dims, keepdim=keepdim)  # of size 1 along dims
        return Scaled(x.mantissa.sum(dims, keepdim=keepdim), scale).normalized()

    def nodes(self, graph: NodeGraph, x: Nodes, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Nodes:
        if x.weight:
            return graph.pinned(x)
        ids = x.ids
        for d in sorted(_dims(ids, dim if dim is not None else kwargs.get("axis")), reverse=True):
            first = ids.narrow(d, 0, 1)
            graph.tie(ids, first.expand_as(ids))
            ids = first if keepdim else first.squeeze(d)
        return Nodes(ids)


@operation("mean")
class Mean(Sum):
    """Mean over dimensions: a sum with fixed weights 1/n, each squared."""

    summary = "a mean: a sum with fixed weights 1/n, squared"

    def squared(self, net: Squared, x: Scaled, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Scaled:
        count = 1
        for d in _dims(x, dim if dim is not None else kwargs.get("axis")):
            count *= x.shape[d]
        return super().squared(net, x, dim, keepdim, **kwargs).times(float(count) ** -net.order)

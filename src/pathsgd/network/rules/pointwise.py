"""Units and sums: ReLU and its relatives, additions, elementwise products."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import (
    NOTHING,
    NodeGraph,
    Nodes,
    Refusal,
    Rule,
    Seen,
    Squared,
    as_scaled,
    operation,
    pointwise,
)
from pathsgd.network.tape import Kind, Value


@operation("relu", "abs", "absolute")
class Unit(Rule):
    """max(z, 0) or |z|: the identity in the squared network, where all values are nonnegative.

    Of weights it is a constraint, relu(W) or |W|: the result is weights that scale as W does, and
    counts every entry, as a unit counts every path, whether it is active or not.
    """

    summary = "a ReLU unit or an absolute value: paths pass with weight 1"
    slices = "entries"

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.WEIGHT if next(iter(kinds)) is Kind.WEIGHT else Kind.ACTIVATION

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0]

    def windows(self, x: Any, *args: Any, **kwargs: Any) -> Seen:
        return pointwise(x)

    def squared(self, net: Squared, x: Scaled, inplace: bool = False) -> Scaled:
        return x

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        return x if isinstance(x, Nodes) and x.weight else Nodes(graph.activation(x))


@operation("clamp", "clamp_min", "clip")
class ClampedUnit(Unit):
    summary = "a ReLU written as clamp(min=0)"

    def check(self, x: Any, min: Any = None, max: Any = None) -> None:
        if isinstance(min, (Value, Tensor)) or min != 0 or max is not None:
            raise Refusal(
                "only clamp(min=0), a ReLU, is positively homogeneous; other bounds saturate"
            )

    def squared(self, net: Squared, x: Scaled, min: Any = None, max: Any = None) -> Scaled:  # type: ignore[override]
        return x


@operation("threshold")
class ThresholdUnit(Unit):
    summary = "a ReLU written as threshold(0, 0)"

    def check(self, x: Any, threshold: Any, value: Any, inplace: bool = False) -> None:
        if isinstance(threshold, Value) or isinstance(value, Value) or threshold != 0 or value != 0:
            raise Refusal("only threshold(0, 0), a ReLU, is positively homogeneous; use relu")

    def squared(  # type: ignore[override]
        self, net: Squared, x: Scaled, threshold: Any, value: Any, inplace: bool = False
    ) -> Scaled:
        return x


@operation("leaky_relu")
class LeakyUnit(Unit):
    """max(z, 0) + slope * min(z, 0): a path passes with the larger squared slope, max(1, s^2).

    For |slope| <= 1 that is 1, as for a ReLU, and at slope 1 it is a linear unit's 1.
    """

    summary = "a leaky unit: paths pass with the larger of its two squared slopes"

    def squared(  # type: ignore[override]
        self, net: Squared, x: Scaled, negative_slope: float = 0.01, inplace: bool = False
    ) -> Scaled:
        return x.times(max(1.0, abs(negative_slope) ** net.order))


@operation("prelu")
class LearntLeakyUnit(Unit):
    """As leaky_relu, the slope a parameter (one, or one per channel in dimension 1)."""

    summary = "a leaky unit with a learnt slope: paths pass with max(1, slope^2)"
    multiplies = True

    def squared(self, net: Squared, x: Any, weight: Any) -> Scaled:  # type: ignore[override]
        x, zero = as_scaled(net, x), torch.zeros((), dtype=torch.float64)
        slope = as_scaled(net, weight).rescaled_to(zero).mantissa
        if slope.numel() > 1:
            slope = slope.reshape([1, -1] + [1] * (x.mantissa.dim() - 2))
        return x.times(slope.clamp(min=1.0))


class Same(Rule):
    """The same paths under another name."""

    summary = "the identity on paths"
    slices = "entries"
    moves = True

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return next(iter(kinds))

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0]

    def windows(self, x: Any, *args: Any, **kwargs: Any) -> Seen:
        return pointwise(x)

    def squared(self, net: Squared, x: Scaled, *args: Any, **kwargs: Any) -> Scaled:
        return x

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        return x


@operation("contiguous", "detach", "data.__get__")
class Identity(Same):
    """May return the tensor itself."""

    aliases = True


@operation("to", "float", "double", "half", "bfloat16", "type", "type_as")
class Cast(Identity):
    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        named = {"half": torch.float16, "bfloat16": torch.bfloat16}
        named.update(float=torch.float32, double=torch.float64)
        given = [a.dtype if isinstance(a, Tensor) else a for a in (*args[1:], *kwargs.values())]
        dtypes = [a for a in (named.get(self.name), *given) if isinstance(a, torch.dtype)]
        return args[0].to(dtypes[0]) if dtypes else args[0]


@operation(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout",
    "clone neg negative positive",
)
class FreshIdentity(Identity):
    """Dropout in its inference form, copies, sign changes."""

    aliases = False


def add_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """A sum has one scale: the nodes of its terms are the same nodes."""
    left, right = torch.broadcast_tensors(graph.activation(a), graph.activation(b))
    graph.tie(left, right)
    return Nodes(torch.where(left >= 0, left, right))


def multiply_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """An elementwise product: constants keep the nodes, a weight leads to new ones."""
    is_first = isinstance(a, Nodes) and not (a.weight and isinstance(b, Nodes))
    values, weight = (a, b) if is_first else (b, a)
    if not isinstance(weight, Nodes):
        constant = torch.as_tensor(weight)
        shape = torch.broadcast_shapes(values.shape, constant.shape)
        ids = values.ids.expand(shape)
        if not bool(constant.all()):
            ids = torch.where(constant == 0, NOTHING, ids)
        return Nodes(ids, values.weight)
    # The weight is shared over the dimensions it lacks: one node per entry of the weight, before
    # and after.
    ids = graph.activation(values)
    shape = torch.broadcast_shapes(ids.shape, weight.shape)
    own = [1] * (len(shape) - len(weight.shape)) + list(weight.shape)
    source = graph.merge(ids.expand(shape), [d for d, size in enumerate(own) if size == 1])
    target = graph.fresh(*own)
    if own != list(weight.shape):
        weight = Nodes(weight.ids.reshape(own), weight=True)
    graph.edges(weight, target, source)
    return Nodes(target.expand(shape))


class Elementwise(Rule):
    def windows(self, *args: Any, **kwargs: Any) -> Seen:
        return pointwise(*args)

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        a, b = args[:2]
        shapes = [x.shape if isinstance(x, Tensor) else () for x in (a, b)]
        dtype = torch.result_type(a, b)
        return torch.empty(torch.broadcast_shapes(*shapes), dtype=dtype, device="meta")


@operation("add", "sub", "subtract", "rsub")
class Add(Elementwise):
    """Paths of all terms; a constant is an edge of fixed weight from a node of value one."""

    summary = "a sum: paths of all terms"
    slices = "entries"

    def squared(self, net: Squared, a: Any, b: Any, *, alpha: float = 1) -> Scaled:
        left, right = as_scaled(net, a), as_scaled(net, b)
        if alpha != 1:  # rsub(a, b, alpha) is b - alpha a
            factor = abs(alpha) ** net.order
            if self.name == "rsub":
                left = left.times(factor)
            else:
                right = right.times(factor)
        return scaled.add(left, right)

    def nodes(self, graph: NodeGraph, a: Any, b: Any, *, alpha: float = 1) -> Nodes:
        return add_nodes(graph, a, b)


@operation("mul", "multiply")
class Multiply(Elementwise):
    """Elementwise product with a constant (fixed weights) or a parameter (an edge per entry)."""

    summary = "an elementwise product with fixed or learnt weights, squared"
    multiplies = True

    def squared(self, net: Squared, a: Any, b: Any) -> Scaled:
        return scaled.multiply(as_scaled(net, a), as_scaled(net, b))

    def nodes(self, graph: NodeGraph, a: Any, b: Any) -> Nodes:
        return multiply_nodes(graph, a, b)


@operation("div", "divide", "true_divide")
class Divide(Elementwise):
    """Division by a constant: fixed weights 1/c."""

    summary = "division by a constant: fixed weights, squared"
    multiplies = True

    def check(self, a: Any, b: Any, *, rounding_mode: str | None = None) -> None:
        if isinstance(b, Value):
            raise Refusal(
                "dividing by an activation or a parameter is not a path; "
                "divide by a constant or multiply"
            )
        if rounding_mode is not None:
            raise Refusal("rounding is not positively homogeneous; drop rounding_mode")
        if bool((torch.as_tensor(b) == 0).any()):
            raise Refusal("it divides by zero")

    def squared(self, net: Squared, a: Any, b: Any, *, rounding_mode: str | None = None) -> Scaled:
        return scaled.multiply(as_scaled(net, a), net.constant(1.0 / b))

    def nodes(self, graph: NodeGraph, a: Any, b: Any, *, rounding_mode: str | None = None) -> Nodes:
        return multiply_nodes(graph, a, b)


@operation("lerp")
class Lerp(Elementwise):
    """a + weight * (b - a), the weight a constant: a sum with fixed weights."""

    summary = "a mixture (1 - w) a + w b with constant w: paths of both terms"

    def check(self, a: Any, b: Any, weight: Any) -> None:
        if isinstance(weight, Value):
            raise Refusal(
                "the share of a mixture is a parameter or an activation; "
                "write a + w * (b - a) as two products"
            )

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return super().shape(operation, args[:2], kwargs)

    def squared(self, net: Squared, a: Any, b: Any, weight: Any) -> Scaled:
        left = scaled.multiply(as_scaled(net, a), net.constant(1 - weight))
        return scaled.add(left, scaled.multiply(as_scaled(net, b), net.constant(weight)))

    def nodes(self, graph: NodeGraph, a: Any, b: Any, weight: Any) -> Nodes:
        return add_nodes(graph, a, b)


@operation("maximum", "minimum", "fmax", "fmin")
class Larger(Elementwise):
    """max(a, b), homogeneous in both together; paths pass through either, as in a max-pool."""

    summary = "the larger or smaller of two: paths of both, weight 1"

    kind = Kind.ACTIVATION

    def squared(self, net: Squared, a: Any, b: Any) -> Scaled:
        return scaled.add(as_scaled(net, a), as_scaled(net, b))

    def nodes(self, graph: NodeGraph, a: Any, b: Any) -> Nodes:
        return add_nodes(graph, a, b)


def dims_of(shape: torch.Size, dim: Any) -> list[int]:
    """The dimensions that torch's `dim` names; all where it names none."""
    if dim is None or dim == () or dim == []:
        return list(range(len(shape)))
    dims = [dim] if isinstance(dim, int) else dim
    return [d % len(shape) for d in dims] if shape else []


@operation("sum")
class Sum(Rule):
    """Sum over dimensions: paths of all entries."""

    summary = "a sum over dimensions: paths of all entries"

    def squared(
        self, net: Squared, x: Scaled, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Scaled:
        dims = dims_of(x.shape, dim)
        if not dims:
            return x
        x = x.merged(dims)
        # The scale has size 1 along dims.
        scale = x.log_scale if x.uniform else x.log_scale.sum(dims, keepdim=keepdim)
        return Scaled(x.mantissa.sum(dims, keepdim=keepdim), scale).normalized()

    def nodes(
        self, graph: NodeGraph, x: Nodes, dim: Any = None, keepdim: bool = False, **kwargs: Any
    ) -> Nodes:
        dims = dims_of(x.ids.shape, dim)
        merged = graph.merge(graph.activation(x), dims)
        return Nodes(merged if keepdim or not dims else merged.squeeze(dims))


@operation("mean")
class Mean(Sum):
    """Mean over dimensions: a sum with fixed weights 1/n, each squared."""

    summary = "a mean: a sum with fixed weights 1/n, squared"

    def squared(
        self, net: Squared, x: Scaled, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Scaled:
        count = math.prod(x.shape[d] for d in dims_of(x.shape, dim))
        return super().squared(net, x, dim, keepdim).times(float(count) ** -net.order)

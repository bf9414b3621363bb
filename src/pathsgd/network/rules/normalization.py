"""Batch normalisation, and weights normalised by their length.

In inference form batch normalisation is an affine map with fixed statistics. While training, a
channel is divided by the standard deviation of the batch, so the scale of what enters does not
matter. Path sums do the same: what arrives is divided by its own mean, a constant to derivatives,

    s_out = weight^2 * s_in / [mean of s_in over the channel] + bias^2

A row before the layer that is multiplied by c has its kappa divided by c^2; nothing else changes.
Running statistics are not read: while training the forward pass does not use them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled, no_scale
from pathsgd.network.framing import Window
from pathsgd.network.rules.base import (
    FIXED,
    NodeGraph,
    Nodes,
    Refusal,
    Rule,
    Seen,
    Squared,
    as_scaled,
    operation,
)
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Kind, Product, values_in


@operation("batch_norm")
class BatchNorm(Rule):
    """y = weight * (x - mean) / sqrt(var + eps) + bias, channels in dimension 1.

    In inference form, as a network: x enters with the fixed weight 1/std, -mean/std is an edge of
    fixed weight from a node of value one, both pass the learnt edge `weight`, and `bias` is an edge
    from a node of value one. The running statistics are fixed numbers, so the nodes before the
    layer are fixed and those after it are free. While training, the nodes before it are free too.
    """

    summary = (
        "batch normalisation: learnt weight and bias; in inference form fixed 1/std and -mean/std, "
        "while training division by the path sum that arrives, held constant"
    )
    multiplies = True
    kind = Kind.ACTIVATION

    def check(self, *args: Any, **kwargs: Any) -> None:
        call = self.arguments(args, kwargs)
        if (call.mean is None or call.var is None) and not call.training:
            raise Refusal("it has no running statistics; use track_running_stats=True")

    def products(self, *args: Any, **kwargs: Any) -> list[Product]:
        call = self.arguments(args, kwargs)
        return [[[v] for v in values_in((call.x, call.weight))]]

    def constants(self, *args: Any, **kwargs: Any) -> Any:
        call = self.arguments(args, kwargs)
        return () if call.training else (call.mean, call.var)

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0].new_empty(args[0].shape)

    def windows(self, x: Any, *args: Any, **kwargs: Any) -> Seen:
        return [x], [Window()] * (len(x.shape) - 2)

    def squared(
        self, net: Squared, x: Any, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Scaled:  # fmt: skip
        x = as_scaled(net, x)
        column = [-1] + [1] * (x.mantissa.dim() - 2)

        def per_channel(value: Any) -> Scaled:
            v = as_scaled(net, value).with_one_scale()
            return Scaled(v.mantissa.reshape(column), v.log_scale)

        if training:
            y = _divided_by_its_size(x, _all_but(x.mantissa, 1))
        else:
            std = (var.double() + eps).sqrt()
            y = scaled.multiply(x, per_channel(1 / std))
            y = scaled.add(y, per_channel(mean.double() / std))
        if weight is not None:
            y = scaled.multiply(y, per_channel(weight))
        return y if bias is None else scaled.add(y, per_channel(bias))

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes:
        call = self.arguments(args, kwargs)
        ids = graph.activation(call.x)
        if call.training and not graph.exact:
            graph.normalise(graph.merge(ids, _all_but(ids, 1)))
        else:  # running statistics, and eps beside those of the batch, have one scale only
            graph.tie(ids, torch.tensor(FIXED))
        if call.weight is None and call.bias is None:
            return Nodes(torch.tensor(FIXED).expand(ids.shape))
        out = Nodes(graph.fresh(ids.shape[1]))
        if call.weight is None:
            graph.tie(out.ids, torch.tensor(FIXED))
        else:
            graph.edges(call.weight, out.ids, FIXED)
        if call.bias is not None:
            out = add_nodes(graph, out, call.bias)
        return Nodes(out.ids.reshape([-1] + [1] * (ids.dim() - 2)).expand_as(ids))


@operation("_weight_norm")
class WeightNorm(Rule):
    """weight = g * v / |v|, |v| over all dimensions but one: what `weight_norm` computes.

    Squared, g^2 v^2 / [|v|^2], the divisor a constant to derivatives. g's entries are the edges;
    the scale of a row of v does not matter.
    """

    summary = "a weight g v / |v|: g^2 v^2 over the sum of v^2, held constant"
    multiplies = True

    def squared(self, net: Squared, v: Any, g: Any, dim: int = 0) -> Scaled:
        rows = as_scaled(net, v)
        others = _all_but(rows.mantissa, dim)
        count = math.prod(rows.shape[d] for d in others)
        unit = _divided_by_its_size(rows, others).times(1 / count)
        return scaled.multiply(unit, as_scaled(net, g))

    def nodes(self, graph: NodeGraph, v: Nodes, g: Nodes, dim: int = 0) -> Nodes:
        rows = graph.fresh(*(n if d == dim else 1 for d, n in enumerate(v.shape)))
        graph.edges(v, rows, FIXED)
        graph.normalise(rows)
        return Nodes(g.ids.expand(v.shape), weight=True)


def _all_but(x: Any, kept: int) -> list[int]:
    return [d for d in range(x.dim()) if d != kept]


def _divided_by_its_size(x: Scaled, dims: list[int]) -> Scaled:
    """x over its mean along `dims`, a constant to derivatives; zero stays zero."""
    x = x.merged(dims)
    size = x.mean(dims)
    return Scaled(x.mantissa * torch.where(size > 0, 1 / size, 0.0), no_scale())

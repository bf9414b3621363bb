"""Batch normalisation: in inference form an affine map with fixed statistics; while training, division by its own size.

While training, a channel is divided by the standard deviation of the batch that is going through it, so it does not
feel the scale of what enters. Path sums do the same: what arrives is divided by its own size, held constant,

    s_out = weight^2 * s_in / [mean of s_in over the channel] + bias^2            [.] constant for derivatives

Multiplying a row before the layer by c divides the row's kappa by c^2 and changes nothing else. No running statistic
is read: while training they are not what the forward pass uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    shape_of,
)
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Kind, Product, values_in


@operation("batch_norm")
class BatchNorm(Rule):
    """y = weight * (x - mean) / sqrt(var + eps) + bias, channels in dimension 1.

    In inference form, as a network: x enters with the fixed weight 1/std, -mean/std is an edge of fixed weight from a
    node of value one, both pass the learnt edge `weight`, `bias` is an edge from a node of value one. The running
    statistics are fixed numbers that rescaling does not reach, so the nodes before the layer are fixed; those after
    it are free. While training, the nodes before the layer are free too, and on their own.
    """

    summary = (
        "batch normalisation: learnt weight and bias; in inference form fixed 1/std and -mean/std, while training "
        "division by the path sum that arrives, held constant"
    )
    multiplies = True

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    def check(
        self, x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False, *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if (mean is None or var is None) and not training:
            raise Refusal("it has no running statistics; use track_running_stats=True")

    def products(
        self, x: Any, mean: Any, var: Any, weight: Any = None, *args: Any, **kwargs: Any
    ) -> list[Product]:
        return [[[v] for v in values_in((x, weight))]]

    def constants(
        self, x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        return () if training else (mean, var)

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
            y = scaled.add(
                scaled.multiply(x, per_channel(1 / std)), per_channel(mean.double() / std)
            )
        if weight is not None:
            y = scaled.multiply(y, per_channel(weight))
        return y if bias is None else scaled.add(y, per_channel(bias))

    def nodes(
        self, graph: NodeGraph, x: Nodes, mean: Any, var: Any, weight: Any = None, bias: Any = None,
        training: bool = False, *args: Any, **kwargs: Any,
    ) -> Nodes:  # fmt: skip
        ids = graph.activation(x)
        if training and not graph.exact:
            graph.normalise(graph.merge(ids, _all_but(ids, 1)))
        else:  # running statistics, or eps beside those of the batch, know one scale only
            graph.tie(ids, torch.tensor(FIXED))
        if weight is None and bias is None:
            return Nodes(torch.tensor(FIXED).expand(ids.shape))
        out = Nodes(graph.fresh(ids.shape[1]))
        if weight is None:
            graph.tie(out.ids, torch.tensor(FIXED))
        else:
            graph.edges(weight, out.ids, FIXED)
        if bias is not None:
            out = add_nodes(graph, out, bias)
        return Nodes(out.ids.reshape([-1] + [1] * (ids.dim() - 2)).expand_as(ids))


@operation("_weight_norm")
class WeightNorm(Rule):
    """weight = g * v / |v|, |v| over all dimensions but one: what `weight_norm` makes of a layer's weight.

    Squared, g^2 v^2 / [|v|^2], the divisor a constant for derivatives. g's entries are the edges; a row of v has a
    scale of its own, which nothing feels.
    """

    summary = "a weight g v / |v|: g^2 v^2 over the sum of v^2, held constant"
    multiplies = True

    def squared(self, net: Squared, v: Any, g: Any, dim: int = 0) -> Scaled:
        rows = as_scaled(net, v)
        others = _all_but(rows.mantissa, dim)
        unit = _divided_by_its_size(rows, others).times(
            1 / math.prod(rows.shape[d] for d in others)
        )
        return scaled.multiply(unit, as_scaled(net, g))

    def nodes(self, graph: NodeGraph, v: Nodes, g: Nodes, dim: int = 0) -> Nodes:
        ids = shape_of(v)
        rows = graph.fresh(*(n if d == dim else 1 for d, n in enumerate(ids)))
        graph.edges(v, rows, FIXED)
        graph.normalise(rows)
        return Nodes(g.ids.expand(ids), weight=True)


def _all_but(x: Any, kept: int) -> list[int]:
    return [d for d in range(x.dim()) if d != kept]


def _divided_by_its_size(x: Scaled, dims: list[int]) -> Scaled:
    """x over its mean along `dims`, which is a constant to derivatives; where nothing arrives, zero stays zero."""
    x = x.merged(dims)
    size = x.mean(dims)
    return Scaled(x.mantissa * torch.where(size > 0, 1 / size, 0.0), no_scale())

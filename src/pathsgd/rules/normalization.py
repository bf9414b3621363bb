"""Batch normalisation in its inference form: an affine map with fixed statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pathsgd import scaled
from pathsgd.rules.base import (
    FIXED,
    Kind,
    NodeGraph,
    Nodes,
    Product,
    Refusal,
    Rule,
    Squared,
    as_scaled,
    operation,
    values_in,
)  # fmt: skip
from pathsgd.rules.pointwise import add_nodes
from pathsgd.scaled import Scaled


@operation("batch_norm")
class BatchNorm(Rule):
    """y = weight * (x - mean) / sqrt(var + eps) + bias, channels in dimension 1.

    As a network: x enters with the fixed weight 1/std, -mean/std is an edge of fixed weight from a node of value one,
    both pass the learnt edge `weight`, `bias` is an edge from a node of value one. The running statistics are fixed
    numbers that rescaling does not reach, so the nodes before the layer are fixed; those after it are free.
    """

    summary = "batch normalisation in inference form: fixed 1/std and -mean/std, learnt weight and bias"
    multiplies = True

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    def check(self, x: Any, mean: Any, var: Any, *args: Any, **kwargs: Any) -> None:
        if mean is None or var is None:
            raise Refusal("it has no running statistics; use track_running_stats=True")

    def products(self, x: Any, mean: Any, var: Any, weight: Any = None, *args: Any, **kwargs: Any) -> list[Product]:
        return [[[v] for v in values_in((x, weight))]]

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0].new_empty(args[0].shape)

    def squared(
        self, net: Squared, x: Any, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Scaled:  # fmt: skip
        x = as_scaled(net, x)
        column = [-1] + [1] * (x.mantissa.dim() - 2)
        std = (var.double() + eps).sqrt()

        def per_channel(value: Any) -> Scaled:
            v = as_scaled(net, value).with_one_scale()
            return Scaled(v.mantissa.reshape(column), v.log_scale)

        y = scaled.add(scaled.multiply(x, per_channel(1 / std)), per_channel(mean.double() / std))
        if weight is not None:
            y = scaled.multiply(y, per_channel(weight))
        return y if bias is None else scaled.add(y, per_channel(bias))

    def nodes(
        self, graph: NodeGraph, x: Nodes, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None, *args: Any,
        **kwargs: Any,
    ) -> Nodes:  # fmt: skip
        ids = graph.activation(x)
        graph.tie(ids, torch.tensor(FIXED))
        if weight is None and bias is None:
            return Nodes(ids)
        out = Nodes(graph.fresh(mean.shape[0]))
        if weight is None:
            graph.tie(out.ids, torch.tensor(FIXED))
        else:
            graph.edges(weight, out.ids, FIXED)
        if bias is not None:
            out = add_nodes(graph, out, bias)
        return Nodes(out.ids.reshape([-1] + [1] * (ids.dim() - 2)).expand_as(ids))

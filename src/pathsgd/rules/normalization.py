"""Batch normalisation in its inference form: an affine map with fixed statistics."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pathsgd import scaled
from pathsgd.rules.base import NodeGraph, Nodes, Refusal, Rule, Squared, as_scaled, operation
from pathsgd.rules.pointwise import add_nodes
from pathsgd.scaled import Scaled


@operation("batch_norm")
class BatchNorm(Rule):
    """y = weight * (x - mean) / sqrt(var + eps) + bias, channels in dimension 1.

    As a network: x enters with the fixed weight 1/std, -mean/std is an edge of fixed weight from a node of value one,
    both pass the learnt edge `weight`, `bias` is an edge from a node of value one. The running statistics are fixed
    numbers, so the nodes before the layer cannot be rescaled; those after it can.
    """

    summary = "batch normalisation in inference form: fixed 1/std and -mean/std, learnt weight and bias"
    multiplies = True

    def check(self, x: Any, mean: Any, var: Any, *args: Any, **kwargs: Any) -> None:
        if mean is None or var is None:
            raise Refusal("it has no running statistics; use track_running_stats=True")

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0].new_empty(args[0].shape)

    def squared(
        self, net: Squared, x: Scaled, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Scaled:  # fmt: skip
        column = [-1] + [1] * (x.mantissa.dim() - 2)
        std = (var.double() + eps).sqrt()

        def per_channel(value: Any) -> Scaled:
            v = as_scaled(net, value)
            return Scaled(v.mantissa.reshape(column), v.log_scale)

        y = scaled.add(_times(x, per_channel(1 / std)), per_channel(mean.double() / std))
        if weight is not None:
            y = _times(y, per_channel(weight))
        return y if bias is None else scaled.add(y, per_channel(bias))

    def nodes(
        self, graph: NodeGraph, x: Nodes, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None, *args: Any,
        **kwargs: Any,
    ) -> Nodes:  # fmt: skip
        column = [-1] + [1] * (x.ids.dim() - 2)
        normalised = add_nodes(graph, x, mean.reshape(column)).ids
        if weight is None:
            return (
                add_nodes(graph, Nodes(normalised), Nodes(graph.activation(bias).reshape(column)))
                if bias is not None
                else Nodes(normalised)
            )
        out = graph.fresh(mean.shape[0])
        graph.edges(weight, out, graph.per_entry(normalised, 1))
        if bias is not None:
            graph.edges(bias, out, 0)
        return Nodes(out.reshape(column).expand_as(x.ids))


def _times(a: Scaled, b: Scaled) -> Scaled:
    return Scaled(a.mantissa * b.mantissa, a.log_scale + b.log_scale).normalized()

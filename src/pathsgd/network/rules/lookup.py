"""Embeddings: rows chosen by integer inputs.

A word is a one-hot input, so the all-ones input over a vocabulary is the sum of all squared rows,
whatever the indices are. A padding row counts like any other (it is zero unless it was set).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import (
    FIXED,
    NodeGraph,
    Nodes,
    Refusal,
    Rule,
    Squared,
    as_scaled,
    operation,
)
from pathsgd.network.tape import Kind, Value


class Lookup(Rule):
    """Common part: the one-hot input is fixed, a row's entry is an edge from its word."""

    kind = Kind.ACTIVATION

    def check(self, *args: Any, **kwargs: Any) -> None:
        call = self.arguments(args, kwargs)
        if isinstance(call.index, Value):
            raise Refusal(
                "indices cannot depend on activations; give symbols as integers "
                "(pathsgd inspect: --input int:1,100)"
            )
        if call.max_norm is not None:
            raise Refusal(
                "max_norm changes the weights in the forward pass; renormalise them outside the "
                "model"
            )

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes:
        weight = self.arguments(args, kwargs).weight
        if not isinstance(weight, Nodes):  # a fixed table: another form of the input
            return Nodes(graph.fresh(1).fill_(FIXED).expand(graph.result_shape))
        target = graph.fresh(weight.shape[1])
        graph.edges(weight, target, FIXED)
        return Nodes(target.expand(graph.result_shape))


@operation("embedding")
class Embedding(Lookup):
    summary = "a lookup: the sum of all squared rows (all-ones over the vocabulary)"

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        call = self.arguments(args, kwargs)
        return call.weight.new_empty((*call.index.shape, call.weight.shape[1]))

    def squared(
        self, net: Squared, index: Tensor, weight: Any, padding_idx: Any = None,
        max_norm: Any = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Scaled:  # fmt: skip
        weight = as_scaled(net, weight).with_one_scale()
        rows = weight.mantissa.sum(0)
        return Scaled(rows.expand(*index.shape, rows.shape[0]), weight.log_scale)


@operation("embedding_bag")
class EmbeddingBag(Lookup):
    """Sums or means of looked-up rows; a mean's fixed weights 1/n are squared like any others."""

    summary = "sums or means of lookups: n or 1/n times the sum of all squared rows"

    def check(self, *args: Any, **kwargs: Any) -> None:
        super().check(*args, **kwargs)
        call = self.arguments(args, kwargs)
        if call.mode not in ("sum", "mean"):
            raise Refusal("the maximum over a bag depends on values; use mode='sum' or mode='mean'")
        if call.per_sample_weights is not None or call.padding_idx is not None:
            raise Refusal(
                "per_sample_weights and padding_idx are not covered; use embedding, a product and "
                "a sum"
            )

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        call = self.arguments(args, kwargs)
        bags = call.index.shape[0]
        if call.offsets is not None:
            bags = len(call.offsets) - bool(call.include_last_offset)
        return call.weight.new_empty((bags, call.weight.shape[1]))

    def squared(
        self, net: Squared, index: Tensor, weight: Any, offsets: Any = None, max_norm: Any = None,
        norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
        padding_idx: Any = None,
    ) -> Scaled:  # fmt: skip
        weight = as_scaled(net, weight).with_one_scale()
        if offsets is None:
            sizes = weight.mantissa.new_full((index.shape[0],), index.shape[1])
        else:
            ends = [*offsets.tolist(), *([] if include_last_offset else [len(index)])]
            sizes = offsets.new_tensor(ends).diff().to(weight.mantissa)
        factor = sizes if mode == "sum" else sizes * sizes.clamp(min=1) ** -net.order
        return Scaled(factor[:, None] * weight.mantissa.sum(0), weight.log_scale).normalized()

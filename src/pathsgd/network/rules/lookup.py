"""Embeddings: rows chosen by integer inputs.

The input of a word is one-hot, so the all-ones input over a vocabulary is the sum of all squared rows, whatever the
indices are. A padding row counts like any other (it is zero unless somebody sets it).
"""

from __future__ import annotations

from collections.abc import Iterable
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
    shape_of,
)
from pathsgd.network.tape import Kind, Value


class Lookup(Rule):
    """Common part: the one-hot input is fixed, a row's entry is an edge from its word."""

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    def _check(self, index: Any, max_norm: Any) -> None:
        if isinstance(index, Value):
            raise Refusal(
                "indices cannot depend on activations; give symbols as integers (pathsgd inspect: --input int:1,100)"
            )
        if max_norm is not None:
            raise Refusal(
                "max_norm changes the weights in the forward pass; renormalise them outside the model"
            )

    def row_nodes(self, graph: NodeGraph, weight: Any) -> Nodes:
        if not isinstance(weight, Nodes):  # a fixed table: no more than another form of the input
            return Nodes(graph.fresh(1).fill_(FIXED).expand(graph.result_shape))
        out = graph.fresh(shape_of(weight)[1])
        graph.edges(weight, out, FIXED)
        return Nodes(out.expand(graph.result_shape))


@operation("embedding")
class Embedding(Lookup):
    summary = "a lookup: the sum of all squared rows (all-ones over the vocabulary)"

    def check(
        self,
        index: Any,
        weight: Any,
        padding_idx: Any = None,
        max_norm: Any = None,
        *args: Any,
        **kw: Any,
    ) -> None:
        self._check(index, max_norm)

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        index, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        return weight.new_empty((*index.shape, weight.shape[1]))

    def squared(
        self, net: Squared, index: Tensor, weight: Any, padding_idx: Any = None, max_norm: Any = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Scaled:  # fmt: skip
        weight = as_scaled(net, weight).with_one_scale()
        rows = weight.mantissa.sum(0)
        return Scaled(rows.expand(*index.shape, rows.shape[0]), weight.log_scale)

    def nodes(
        self, graph: NodeGraph, index: Tensor, weight: Any, *args: Any, **kwargs: Any
    ) -> Nodes:
        return self.row_nodes(graph, weight)


@operation("embedding_bag")
class EmbeddingBag(Lookup):
    """Sums or means of looked-up rows; a mean's fixed weights 1/n are squared like any others."""

    summary = "sums or means of lookups: n or 1/n times the sum of all squared rows"

    def check(
        self, index: Any, weight: Any, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
        include_last_offset: bool = False, padding_idx: Any = None,
    ) -> None:  # fmt: skip
        self._check(index, max_norm)
        if mode not in ("sum", "mean"):
            raise Refusal("the maximum over a bag depends on values; use mode='sum' or mode='mean'")
        if per_sample_weights is not None or padding_idx is not None:
            raise Refusal(
                "per_sample_weights and padding_idx are not covered; use embedding, a product and a sum"
            )

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        index, weight = args[:2]
        offsets = kwargs.get("offsets", args[2] if len(args) > 2 else None)
        bags = (
            index.shape[0]
            if offsets is None
            else len(offsets) - bool(kwargs.get("include_last_offset"))
        )
        return weight.new_empty((bags, weight.shape[1]))

    def squared(
        self, net: Squared, index: Tensor, weight: Any, offsets: Any = None, max_norm: Any = None, norm_type: float = 2,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
        include_last_offset: bool = False, padding_idx: Any = None,
    ) -> Scaled:  # fmt: skip
        weight = as_scaled(net, weight).with_one_scale()
        if offsets is None:
            sizes = weight.mantissa.new_full((index.shape[0],), index.shape[1])
        else:
            ends = (
                offsets
                if include_last_offset
                else offsets.new_tensor([*offsets.tolist(), len(index)])
            )
            sizes = ends.diff().to(weight.mantissa)
        factor = sizes if mode == "sum" else sizes * sizes.clamp(min=1) ** -net.order
        return Scaled(factor[:, None] * weight.mantissa.sum(0), weight.log_scale).normalized()

    def nodes(
        self, graph: NodeGraph, index: Tensor, weight: Any, *args: Any, **kwargs: Any
    ) -> Nodes:
        return self.row_nodes(graph, weight)

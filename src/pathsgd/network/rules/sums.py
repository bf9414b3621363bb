"""Sums over places that indices or an order name: messages of a graph, running sums, differences of neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import (
    NodeGraph,
    Nodes,
    Refusal,
    Rule,
    Squared,
    as_scaled,
    operation,
)
from pathsgd.network.tape import Kind, Value


class SumAtPlaces(Rule):
    """base with the entries of source added at the places that a constant index names, along one dimension."""

    summary = "adds entries at places that an index names: paths of all of them"

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0].new_empty(args[0].shape)

    def places(self, shape: torch.Size, dim: int, index: Tensor, source: torch.Size) -> Tensor:
        """For every entry of the source, the number of the entry that it is added to."""
        raise AssertionError("subclasses say where")

    def added(self, base: Scaled, dim: int, index: Tensor, source: Scaled) -> Scaled:
        shape = base.shape
        target = self.places(shape, dim, index, source.shape).to(base.mantissa.device).reshape(-1)

        def add(b: Tensor, s: Tensor) -> Tensor:
            kept = s[tuple(slice(n) for n in index.shape)] if s.shape != source.shape else s
            return (
                b.reshape(-1)
                .index_add(0, target, self.used(kept, index).reshape(-1))
                .reshape(shape)
            )

        base, source = base.with_one_scale(), source.with_one_scale()
        scale = torch.maximum(base.log_scale, source.log_scale)
        return Scaled(
            add(base.rescaled_to(scale).mantissa, source.rescaled_to(scale).mantissa), scale
        ).normalized()

    def used(self, source: Tensor, index: Tensor) -> Tensor:
        """The entries of the source that the operation reads."""
        return source

    def tied(self, graph: NodeGraph, base: Any, dim: int, index: Tensor, source: Any) -> Nodes:
        into, ids = graph.activation(base), graph.activation(source)
        target = self.places(into.shape, dim, index, ids.shape).reshape(-1)
        flat = into.reshape(-1).clone()
        ids = self.used(ids, index).reshape(-1)
        # Every place takes the largest number that comes to it (a zero, -1, says nothing); all others are tied to it.
        flat.scatter_reduce_(0, target, ids, "amax")
        graph.tie(ids, flat[target])
        graph.tie(into.reshape(-1), flat)
        return Nodes(flat.reshape(into.shape))


@operation("index_add")
class IndexAdd(SumAtPlaces):
    """base[index[i]] += alpha * source[i] along one dimension."""

    def places(self, shape: torch.Size, dim: int, index: Tensor, source: torch.Size) -> Tensor:
        return _numbers(shape).index_select(dim, index)

    def squared(
        self, net: Squared, x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1
    ) -> Scaled:
        return self.added(
            as_scaled(net, x), dim, index, as_scaled(net, source).times(abs(alpha) ** net.order)
        )

    def nodes(
        self, graph: NodeGraph, x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1
    ) -> Nodes:
        return self.tied(graph, x, dim, index, source)


@operation("scatter_add")
class ScatterAdd(SumAtPlaces):
    """base[index[i]] += source[i], an index for every entry."""

    def places(self, shape: torch.Size, dim: int, index: Tensor, source: torch.Size) -> Tensor:
        within = _numbers(shape)[
            tuple(
                slice(None) if d == dim % len(shape) else slice(n)
                for d, n in enumerate(index.shape)
            )
        ]
        return within.gather(dim, index)

    def used(self, source: Tensor, index: Tensor) -> Tensor:
        return source[tuple(slice(n) for n in index.shape)]

    def squared(self, net: Squared, x: Any, dim: int, index: Tensor, source: Any) -> Scaled:
        return self.added(as_scaled(net, x), dim, index, as_scaled(net, source))

    def nodes(self, graph: NodeGraph, x: Any, dim: int, index: Tensor, source: Any) -> Nodes:
        return self.tied(graph, x, dim, index, source)


@operation("scatter_reduce")
class ScatterReduce(ScatterAdd):
    """The sum or the largest of all entries that come to a place; the largest counts every one of them, as a pool."""

    def check(
        self, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
    ) -> None:
        if reduce not in ("sum", "amax", "amin"):
            raise Refusal(
                f"reduce={reduce!r} is not covered; use 'sum' (divided by the count for a mean) or 'amax'"
            )

    def squared(  # type: ignore[override]
        self,
        net: Squared,
        x: Any,
        dim: int,
        index: Tensor,
        source: Any,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Scaled:
        base = as_scaled(net, x)
        if not include_self:
            fresh = (
                self.places(base.shape, dim, index, index.shape)
                .reshape(-1)
                .to(base.mantissa.device)
            )
            base = scaled.move(
                lambda m: m.reshape(-1).index_fill(0, fresh, 0.0).reshape(m.shape), base
            )
        return self.added(base, dim, index, as_scaled(net, source))

    def nodes(  # type: ignore[override]
        self,
        graph: NodeGraph,
        x: Any,
        dim: int,
        index: Tensor,
        source: Any,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Nodes:
        return self.tied(graph, x, dim, index, source)


def _numbers(shape: torch.Size) -> Tensor:
    """The entries of a tensor of this shape, counted."""
    return torch.arange(shape.numel()).reshape(shape)


@operation("cumsum")
class RunningSum(Rule):
    """y_k = x_1 + ... + x_k along one dimension."""

    summary = "a running sum: paths of all entries so far"

    def squared(self, net: Squared, x: Scaled, dim: int, *, dtype: Any = None) -> Scaled:
        x = x.merged([dim])
        return Scaled(x.mantissa.cumsum(dim), x.log_scale).normalized()

    def nodes(self, graph: NodeGraph, x: Nodes, dim: int, *, dtype: Any = None) -> Nodes:
        ids = graph.activation(x)
        return Nodes(graph.merge(ids, [dim % ids.dim()]).expand(ids.shape))


@operation("diff")
class Difference(Rule):
    """y_k = x_{k+1} - x_k along one dimension."""

    summary = "differences of neighbours: paths of both"

    def check(
        self, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
    ) -> None:
        if n != 1 or isinstance(prepend, (Value, Tensor)) or isinstance(append, (Value, Tensor)):
            raise Refusal(
                "only plain first differences are covered; write x[1:] - x[:-1], with torch.cat before it"
            )

    def squared(
        self,
        net: Squared,
        x: Scaled,
        n: int = 1,
        dim: int = -1,
        prepend: Any = None,
        append: Any = None,
    ) -> Scaled:
        x, count = x.merged([dim]), x.shape[dim] - 1
        return Scaled(
            x.mantissa.narrow(dim, 0, count) + x.mantissa.narrow(dim, 1, count), x.log_scale
        ).normalized()

    def nodes(
        self,
        graph: NodeGraph,
        x: Nodes,
        n: int = 1,
        dim: int = -1,
        prepend: Any = None,
        append: Any = None,
    ) -> Nodes:
        ids = graph.activation(x)
        return Nodes(graph.merge(ids, [dim % ids.dim()]).expand(graph.result_shape))

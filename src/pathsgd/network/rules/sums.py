"""Sums over places: messages of a graph, running sums, differences of neighbours."""

from __future__ import annotations

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
from pathsgd.network.tape import Kind


class SumAtPlaces(Rule):
    """base with the entries of source added at the places of a constant index."""

    summary = "adds entries at places that an index names: paths of all of them"

    kind = Kind.ACTIVATION

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return args[0].new_empty(args[0].shape)

    def places(self, shape: torch.Size, dim: int, index: Tensor, source: torch.Size) -> Tensor:
        """For every entry of the source, the number of the entry that it is added to."""
        raise AssertionError("subclasses define the places")

    def added(self, base: Scaled, dim: int, index: Tensor, source: Scaled) -> Scaled:
        shape = base.shape
        target = self.places(shape, dim, index, source.shape).to(base.mantissa.device).reshape(-1)

        base, source = base.with_one_scale(), source.with_one_scale()
        scale = torch.maximum(base.log_scale, source.log_scale)
        added = self.used(source.rescaled_to(scale).mantissa, index).reshape(-1)
        flat = base.rescaled_to(scale).mantissa.reshape(-1)
        return Scaled(flat.index_add(0, target, added).reshape(shape), scale).normalized()

    def used(self, source: Tensor, index: Tensor) -> Tensor:
        """The entries of the source that the operation reads."""
        return source

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes:
        call = self.arguments(args, kwargs)
        dim, index = call.dim, call.index
        into, ids = graph.activation(call.x), graph.activation(call.source)
        target = self.places(into.shape, dim, index, ids.shape).reshape(-1)
        flat = into.reshape(-1).clone()
        ids = self.used(ids, index).reshape(-1)
        # Every place takes the largest number that comes to it (a zero is -1); all
        # others are tied to it.
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


@operation("scatter_add")
class ScatterAdd(SumAtPlaces):
    """base[index[i]] += source[i], an index for every entry."""

    def places(self, shape: torch.Size, dim: int, index: Tensor, source: torch.Size) -> Tensor:
        kept = [slice(n) for n in index.shape]
        kept[dim % len(shape)] = slice(None)
        return _numbers(shape)[tuple(kept)].gather(dim, index)

    def used(self, source: Tensor, index: Tensor) -> Tensor:
        return source[tuple(slice(n) for n in index.shape)]

    def squared(self, net: Squared, x: Any, dim: int, index: Tensor, source: Any) -> Scaled:
        return self.added(as_scaled(net, x), dim, index, as_scaled(net, source))


@operation("scatter_reduce")
class ScatterReduce(ScatterAdd):
    """The sum or the largest of the entries of a place; the largest counts all, as a pool."""

    def check(
        self, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
    ) -> None:
        if reduce not in ("sum", "amax", "amin"):
            raise Refusal(
                f"reduce={reduce!r} is not covered; "
                "use 'sum' (divided by the count for a mean) or 'amax'"
            )

    def squared(  # type: ignore[override]
        self, net: Squared, x: Any, dim: int, index: Tensor, source: Any, reduce: str, *,
        include_self: bool = True,
    ) -> Scaled:  # fmt: skip
        base = as_scaled(net, x)
        if not include_self:
            places = self.places(base.shape, dim, index, index.shape).reshape(-1)
            places = places.to(base.mantissa.device)
            base = scaled.move(
                lambda m: m.reshape(-1).index_fill(0, places, 0.0).reshape(m.shape), base
            )
        return self.added(base, dim, index, as_scaled(net, source))


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

    def check(self, *args: Any, **kwargs: Any) -> None:
        call = self.arguments(args, kwargs)
        if call.n != 1 or call.prepend is not None or call.append is not None:
            raise Refusal(
                "only plain first differences are covered; "
                "write x[1:] - x[:-1], with torch.cat before it"
            )

    def squared(
        self, net: Squared, x: Scaled, n: int = 1, dim: int = -1, prepend: Any = None,
        append: Any = None,
    ) -> Scaled:  # fmt: skip
        x, count = x.merged([dim]), x.shape[dim] - 1
        first, second = (x.mantissa.narrow(dim, start, count) for start in (0, 1))
        return Scaled(first + second, x.log_scale).normalized()

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes:
        call = self.arguments(args, kwargs)
        ids = graph.activation(call.x)
        return Nodes(graph.merge(ids, [call.dim % ids.dim()]).expand(graph.result_shape))

"""Operations that only move entries, applied to path sums, scales and node numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.framing import Window
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
    per_dimension,
)
from pathsgd.network.tape import Kind, Value


def _callable(name: str) -> Callable[..., Any]:
    """torch's operation of this name."""
    if name == "view":  # needs a memory layout that the squared network's tensors may not have
        return torch.Tensor.reshape
    if name.endswith(".__get__"):
        return getattr(torch.Tensor, name.removesuffix(".__get__")).__get__
    for home in (torch.Tensor, torch, F, torch._VF):
        if hasattr(home, name):
            return getattr(home, name)
    raise AssertionError(f"torch has no {name}")


class MoveRule(Rule):
    summary = "moves entries: the same paths"
    moves = True

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        found = set(kinds)
        return found.pop() if len(found) == 1 else Kind.ACTIVATION


@operation(
    "reshape view permute transpose swapaxes swapdims movedim moveaxis t T.__get__ mT.__get__",
    "flatten unflatten ravel squeeze unsqueeze expand broadcast_to narrow select __getitem__ split",
    "split_with_sizes chunk tensor_split hsplit vsplit dsplit unbind diagonal unfold",
)
class View(MoveRule):
    """One operand, results that share its memory."""

    aliases = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.slices = "picked" if name in ("__getitem__", "unbind", "select") else None

    def squared(self, net: Squared, x: Scaled, *args: Any, **kwargs: Any) -> Any:
        op = _callable(self.name)
        mantissas = op(x.mantissa, *args, **kwargs)
        scales = None if x.uniform else op(x.elementwise_scale(), *args, **kwargs)
        if isinstance(mantissas, Tensor):
            return Scaled(mantissas, x.log_scale if scales is None else scales)
        return tuple(map(Scaled, mantissas, scales or [x.log_scale] * len(mantissas)))

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Any:
        result = _callable(self.name)(x.ids, *args, **kwargs)
        if isinstance(result, Tensor):
            return Nodes(result, x.weight)
        return tuple(Nodes(r, x.weight) for r in result)


@operation(
    "repeat tile repeat_interleave index_select flip fliplr flipud rot90 roll take_along_dim",
    "gather pixel_shuffle pixel_unshuffle channel_shuffle",
)
class Copy(View):
    """One operand, results with memory of their own."""

    aliases = False

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        if self.name == "take_along_dim":  # insists on one device
            args = (args[0], args[1].to("meta"), *args[2:])
        return super().shape(operation, args, kwargs)


@operation("view_as", "reshape_as", "expand_as")
class Like(View):
    """A view in the shape of another tensor, of which only the shape matters."""

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        return args[0], args[1].shape

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return _callable(self._plain)(*args)

    @property
    def _plain(self) -> str:
        return "expand" if self.name == "expand_as" else "reshape"

    def squared(self, net: Squared, x: Scaled, shape: torch.Size) -> Any:
        return scaled.move(lambda m: _callable(self._plain)(m, shape), x)

    def nodes(self, graph: NodeGraph, x: Nodes, shape: torch.Size) -> Any:
        return Nodes(_callable(self._plain)(x.ids, shape), x.weight)


@operation("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
class Join(MoveRule):
    """Several operands side by side; constants among them are edges of fixed weight."""

    def windows(self, parts: Any, dim: Any = 0) -> Seen | None:  # type: ignore[override]
        if not self.name.startswith("c") or not isinstance(dim, int):  # not `cat`
            return None
        last = max(len(p.shape) for p in parts)
        return [*parts], [Window()] * (last - 1 - dim % last)

    def squared(self, net: Squared, parts: Any, *args: Any, **kwargs: Any) -> Scaled:
        op = _callable(self.name)
        return scaled.move(lambda *p: op(p, *args, **kwargs), *(as_scaled(net, p) for p in parts))

    def nodes(self, graph: NodeGraph, parts: Any, *args: Any, **kwargs: Any) -> Nodes:
        ids, weight = graph.alike(*parts)
        return Nodes(_callable(self.name)(ids, *args, **kwargs), weight)


@operation("where")
class Choose(MoveRule):
    """where(condition, a, b) with a condition that does not depend on activations."""

    summary = "chooses entries by a constant mask"

    def check(self, condition: Any, a: Any = None, b: Any = None) -> None:
        if isinstance(condition, Value) or a is None:
            raise Refusal(
                "the condition depends on values of the network; it must be a constant mask"
            )

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return super().shape(operation, (args[0].to("meta"), *args[1:]), kwargs)

    def squared(self, net: Squared, condition: Tensor, a: Any, b: Any) -> Scaled:
        parts = torch.broadcast_tensors(*(as_scaled(net, x).mantissa for x in (a, b)))
        scales = (as_scaled(net, x).log_scale for x in (a, b))
        return scaled.move(lambda m, n: torch.where(condition, m, n), *map(Scaled, parts, scales))

    def nodes(self, graph: NodeGraph, condition: Tensor, a: Any, b: Any) -> Nodes:
        (left, right), weight = graph.alike(a, b)
        return Nodes(torch.where(condition, left, right), weight)


@operation("masked_fill")
class MaskedFill(MoveRule):
    """Entries replaced by zero: their paths end."""

    summary = "masking with zero: masked paths end"

    def check(self, x: Any, mask: Any, value: Any) -> None:
        if isinstance(value, Value) or value != 0:
            raise Refusal("only masking with zero keeps the network homogeneous; fill with 0")

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return super().shape(operation, (args[0], args[1].to("meta"), *args[2:]), kwargs)

    def squared(self, net: Squared, x: Scaled, mask: Tensor, value: Any) -> Scaled:
        return scaled.move(lambda m: m.masked_fill(mask, 0.0), x)

    def nodes(self, graph: NodeGraph, x: Nodes, mask: Tensor, value: Any) -> Nodes:
        return Nodes(x.ids.masked_fill(mask, NOTHING), x.weight)


@operation("pad")
class Pad(MoveRule):
    """Padding with zeros (no paths), -inf (which no maximum takes) or copies."""

    summary = "padding: zeros start no path"

    def check(self, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> None:
        if mode == "constant" and value not in (None, 0, -math.inf):
            raise Refusal(
                "padding with a nonzero constant is not homogeneous; "
                "pad with 0, or with -inf for a max-pool"
            )

    def squared(
        self, net: Squared, x: Scaled, pad: Any, mode: str = "constant", value: float | None = None
    ) -> Scaled:
        return scaled.move(lambda m: F.pad(m, pad, mode), x)

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        call = self.arguments((x, *args), kwargs)
        if call.mode == "constant":
            return Nodes(F.pad(x.ids, call.pad, value=NOTHING), x.weight)
        return Nodes(_as_floats(lambda ids: F.pad(ids, call.pad, call.mode), x.ids), x.weight)


@operation("tril", "triu")
class Triangle(MoveRule):
    """Entries on one side of a diagonal; the others become zero."""

    summary = "keeps a triangle: the other entries' paths end"

    def squared(self, net: Squared, x: Scaled, diagonal: int = 0) -> Scaled:
        return scaled.move(lambda m: _callable(self.name)(m, diagonal), x)

    def nodes(self, graph: NodeGraph, x: Nodes, diagonal: int = 0) -> Nodes:
        kept = _callable(self.name)(torch.ones(x.ids.shape[-2:], dtype=torch.bool), diagonal)
        return Nodes(torch.where(kept, x.ids, NOTHING), x.weight)


@operation("interpolate")
class Upsample(MoveRule):
    """Resizing: copies of entries, or fixed weights over the positions of a channel.

    All of torch's modes work dimension by dimension, so a path's fixed weight is a product of one
    factor for each.
    """

    summary = "resizing: copies of entries, or fixed weights, squared"

    kind = Kind.ACTIVATION

    def windows(self, *args: Any, **kwargs: Any) -> Seen | None:
        call = self.arguments(args, kwargs)
        factors = per_dimension(call.scale_factor, len(call.x.shape) - 2)
        has_options = call.size is not None or any(call.args) or any(call.kwargs.values())
        is_copy = call.mode.startswith("nearest") and not has_options
        if not is_copy or not all(factor in (1, 2, 3, 4) for factor in factors):
            return None
        return [call.x], [Window(copies=int(factor)) for factor in factors]

    def squared(
        self, net: Squared, x: Scaled, size: Any = None, scale_factor: Any = None,
        mode: str = "nearest", *args: Any, **kwargs: Any,
    ) -> Scaled:  # fmt: skip
        if mode.startswith("nearest"):
            return scaled.move(
                lambda m: F.interpolate(m, size, scale_factor, mode, *args, **kwargs), x
            )
        x = x.with_one_scale()
        y, spatial = x.mantissa, x.mantissa.dim() - 2
        for k in range(spatial):
            along = (y.shape[2 + k], *(_one(v, k) for v in (size, scale_factor)))
            matrix = _resizing(*along, mode, spatial, *args, **kwargs).to(y).abs() ** net.order
            y = torch.tensordot(y, matrix, ([2 + k], [0])).movedim(-1, 2 + k)
        return Scaled(y, x.log_scale).normalized()

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        ids = graph.activation(x)
        if self.arguments((x, *args), kwargs).mode.startswith("nearest"):
            return Nodes(_as_floats(lambda i: F.interpolate(i, *args, **kwargs), ids))
        return Nodes(graph.merge(ids, range(2, ids.dim())).expand(graph.result_shape))


def _one(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, (tuple, list)) else value


def _resizing(
    length: int, size: Any, scale: Any, mode: str, spatial: int, *args: Any, **kwargs: Any
) -> Tensor:
    """torch's resizing along one dimension as a matrix (from, to): its result for unit vectors."""
    single = torch.eye(length, dtype=torch.float64).reshape(1, length, length, *[1] * (spatial - 1))
    rest = [1] * (spatial - 1)
    wanted = None if size is None else (size, *rest)
    factors = None if scale is None else (float(scale), *map(float, rest))
    return F.interpolate(single, wanted, factors, mode, *args, **kwargs).reshape(length, -1)


def _as_floats(operation: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    """For operations without an integer version; exact, node numbers are far below 2^53."""
    return operation(ids.to(torch.float64)).to(torch.int64)


@operation("__setitem__")
class Assign(MoveRule):
    """x[index] = y on a tensor made for collecting results."""

    summary = "writes entries into a tensor"

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        operation(*args)
        return args[0]

    def squared(self, net: Squared, x: Any, index: Any, y: Any) -> Scaled:
        def write(base: Tensor, new: Tensor) -> Tensor:
            copy = base.clone()
            copy[index] = new
            return copy

        return scaled.move(write, as_scaled(net, x), as_scaled(net, y))

    def nodes(self, graph: NodeGraph, x: Any, index: Any, y: Any) -> Nodes:
        (base, new), weight = graph.alike(x, y)
        base = base.clone()
        base[index] = new
        return Nodes(base, weight)


@operation("_pack_padded_sequence")
class Pack(MoveRule):
    """The first half of torch.nn.utils.rnn.pack_padded_sequence: valid steps, time by time."""

    def squared(self, net: Squared, x: Scaled, lengths: Tensor, batch_first: bool) -> Any:
        data = scaled.move(lambda m: torch._VF._pack_padded_sequence(m, lengths, batch_first)[0], x)
        return data, None

    def nodes(self, graph: NodeGraph, x: Nodes, lengths: Tensor, batch_first: bool) -> Any:
        packed = torch._VF._pack_padded_sequence(x.ids, lengths, batch_first)
        return Nodes(packed[0], x.weight), None


@operation("_pad_packed_sequence")
class Unpack(MoveRule):
    """torch.nn.utils.rnn.pad_packed_sequence: back to a padded tensor; padding carries no path."""

    def check(self, *args: Any, **kwargs: Any) -> None:
        if self.arguments(args, kwargs).fill != 0:
            raise Refusal("padding with a nonzero constant is not homogeneous; use padding_value=0")

    def squared(
        self, net: Squared, data: Scaled, sizes: Tensor, batch_first: bool, fill: float, total: int
    ) -> Any:
        def padded(m: Tensor) -> Any:
            return torch._VF._pad_packed_sequence(m, sizes, batch_first, 0.0, total)[0]

        return scaled.move(padded, data), None

    def nodes(self, graph: NodeGraph, data: Nodes, *args: Any) -> Any:
        sizes, batch_first, _, total = args
        padded = torch._VF._pad_packed_sequence(data.ids, sizes, batch_first, NOTHING, total)
        return Nodes(padded[0], data.weight), None

"""Operations that only move entries: the same operation on path sums, on scales and on node numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd import scaled
from pathsgd.rules.base import Kind, NodeGraph, Nodes, Refusal, Rule, Squared, as_scaled, operation
from pathsgd.scaled import Scaled

# Where torch's operation insists on a memory layout that the squared network's tensors need not have.
_LAYOUT_FREE: dict[str, Callable[..., Any]] = {"view": torch.Tensor.reshape, "view_as": torch.Tensor.reshape_as}


def _callable(name: str) -> Callable[..., Any]:
    if name in _LAYOUT_FREE:
        return _LAYOUT_FREE[name]
    if name.endswith(".__get__"):
        return getattr(torch.Tensor, name.removesuffix(".__get__")).__get__
    for home in (torch.Tensor, torch, F, torch._VF):
        if hasattr(home, name):
            return getattr(home, name)
    raise AssertionError(f"torch has no {name}")


class MoveRule(Rule):
    summary = "moves entries: the same paths"

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        found = set(kinds)
        return found.pop() if len(found) == 1 else Kind.ACTIVATION


@operation(
    "reshape", "view", "view_as", "reshape_as", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis",
    "t", "T.__get__", "mT.__get__", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as",
    "broadcast_to", "narrow", "select", "__getitem__", "split", "split_with_sizes", "chunk", "tensor_split", "unbind",
    "unfold_copy", "diagonal",
)  # fmt: skip
class View(MoveRule):
    """One operand, results that share its memory."""

    aliases = True

    def squared(self, net: Squared, x: Scaled, *args: Any, **kwargs: Any) -> Any:
        op = _callable(self.name)
        mantissas = op(x.mantissa, *args, **kwargs)
        if isinstance(mantissas, Tensor):
            return Scaled(mantissas, x.log_scale if x.uniform else op(x.elementwise_scale(), *args, **kwargs))
        scales = [x.log_scale] * len(mantissas) if x.uniform else op(x.elementwise_scale(), *args, **kwargs)
        return tuple(Scaled(m, s) for m, s in zip(mantissas, scales))

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Any:
        result = _callable(self.name)(x.ids, *args, **kwargs)
        return Nodes(result, x.weight) if isinstance(result, Tensor) else tuple(Nodes(r, x.weight) for r in result)


@operation(
    "repeat",
    "tile",
    "repeat_interleave",
    "index_select",
    "flip",
    "fliplr",
    "flipud",
    "roll",
    "take_along_dim",
    "gather",
    "unfold",
)
class Copy(View):
    """One operand, results with memory of their own."""

    aliases = False


@operation("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
class Join(MoveRule):
    """Several operands side by side; constants among them are edges of fixed weight."""

    def squared(self, net: Squared, parts: Any, *args: Any, **kwargs: Any) -> Scaled:
        op = _callable(self.name)
        return scaled.move(lambda *p: op(p, *args, **kwargs), *(as_scaled(net, p) for p in parts))

    def nodes(self, graph: NodeGraph, parts: Any, *args: Any, **kwargs: Any) -> Nodes:
        weight = all(isinstance(p, Nodes) and p.weight for p in parts)
        ids = [p.ids if weight else graph.activation(p) for p in parts]
        return Nodes(_callable(self.name)(ids, *args, **kwargs), weight)


@operation("pad")
class Pad(MoveRule):
    """Padding: with zeros (no paths) or with copies of entries."""

    summary = "padding: zeros start no path"

    def check(self, x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> None:
        if mode == "constant" and value not in (None, 0):
            raise Refusal("padding with a nonzero constant is not homogeneous; pad with 0")

    def squared(self, net: Squared, x: Scaled, pad: Any, mode: str = "constant", value: float | None = None) -> Scaled:
        return scaled.move(lambda m: F.pad(m, pad, mode), x)

    def nodes(self, graph: NodeGraph, x: Nodes, pad: Any, mode: str = "constant", value: float | None = None) -> Nodes:
        if mode == "constant":
            return Nodes(F.pad(x.ids, pad, value=-1), x.weight)
        padded = F.pad(x.ids.to(torch.float64), pad, mode)  # exact: node numbers are far below 2^53
        return Nodes(padded.to(torch.int64), x.weight)


@operation("__setitem__")
class Assign(MoveRule):
    """x[index] = y on a tensor made for collecting results."""

    summary = "writes entries into a tensor"

    def squared(self, net: Squared, x: Any, index: Any, y: Any) -> Scaled:
        def write(base: Tensor, new: Tensor) -> Tensor:
            copy = base.clone()
            copy[index] = new
            return copy

        return scaled.move(write, as_scaled(net, x), as_scaled(net, y))

    def nodes(self, graph: NodeGraph, x: Any, index: Any, y: Any) -> Nodes:
        base = graph.activation(x).clone()
        base[index] = graph.activation(y)
        return Nodes(base)


@operation("_pack_padded_sequence")
class Pack(MoveRule):
    """The first half of torch.nn.utils.rnn.pack_padded_sequence: valid steps, time by time."""

    def squared(self, net: Squared, x: Scaled, lengths: Tensor, batch_first: bool) -> Any:
        data = scaled.move(lambda m: torch._VF._pack_padded_sequence(m, lengths, batch_first)[0], x)
        return data, None

    def nodes(self, graph: NodeGraph, x: Nodes, lengths: Tensor, batch_first: bool) -> Any:
        return Nodes(torch._VF._pack_padded_sequence(x.ids, lengths, batch_first)[0]), None


@operation("_pad_packed_sequence")
class Unpack(MoveRule):
    """torch.nn.utils.rnn.pad_packed_sequence: back to a padded tensor; padding carries no path."""

    def check(self, data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, total_length: int) -> None:
        if padding_value != 0:
            raise Refusal("padding with a nonzero constant is not homogeneous; use padding_value=0")

    def squared(self, net: Squared, data: Scaled, sizes: Tensor, batch_first: bool, fill: float, total: int) -> Any:
        padded = scaled.move(lambda m: torch._VF._pad_packed_sequence(m, sizes, batch_first, 0.0, total)[0], data)
        return padded, None

    def nodes(self, graph: NodeGraph, data: Nodes, sizes: Tensor, batch_first: bool, fill: float, total: int) -> Any:
        return Nodes(torch._VF._pad_packed_sequence(data.ids, sizes, batch_first, -1, total)[0]), None

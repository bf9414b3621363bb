"""What a model is called with: arguments and keywords, with tensors anywhere in them.

Tensors lie in tuples, lists and dictionaries, and in objects that hold them (dataclasses, graphs with their edges).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def call_of(model: nn.Module, inputs: Sequence[Any]) -> Call:
    """Example inputs as the model takes them; one dictionary of inputs by the names of forward's is taken by name."""
    if isinstance(model, nn.Module) and len(inputs) == 1 and isinstance(inputs[0], Mapping) and inputs[0]:
        signature = inspect.signature(model.forward)
        names = [n for n, p in signature.parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        try:
            signature.bind(**inputs[0])
        except TypeError:
            return Call(tuple(inputs))
        if any(name in names for name in inputs[0]):
            return Call((), dict(inputs[0]))
    return Call(tuple(inputs))


def map_tensors(function: Callable[[Tensor], Any], call: Call) -> Call:
    """The call with function(tensor) in the place of every tensor, in the order of `numbered_tensors`."""

    def mapped(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        held = _held(leaf)
        # A deep copy takes what the memo says for the tensors, and copies the objects around them.
        return copy.deepcopy(leaf, {id(t): function(t) for t in held}) if held else leaf

    args, kwargs = tree_map(mapped, (call.args, call.kwargs))
    return Call(args, kwargs)


def numbered_tensors(call: Call) -> list[Tensor]:
    """All tensors of a call, in an order of their own."""
    leaves, _ = tree_flatten((call.args, call.kwargs))
    return [t for leaf in leaves for t in ([leaf] if isinstance(leaf, Tensor) else _held(leaf))]


def objects_in(call: Call) -> list[Any]:
    """Everything in a call that is neither a tensor nor holds one."""
    leaves, _ = tree_flatten((call.args, call.kwargs))
    return [leaf for leaf in leaves if not isinstance(leaf, Tensor) and not _held(leaf)]


def _held(item: Any) -> list[Tensor]:
    """Tensors in the attributes of an object and of what those hold."""
    found: dict[int, Tensor] = {}
    waiting, seen = [item], set()
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, (*_PLAIN, nn.Module)) or callable(one) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.setdefault(id(one), one)
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "__dict__"):
            waiting.extend(vars(one).values())
    return list(found.values())


def is_packed(call: Call) -> bool:
    """Whether a packed sequence is among the inputs: its rows differ in length."""
    leaves, _ = tree_flatten((call.args, call.kwargs), is_leaf=lambda a: isinstance(a, PackedSequence))
    return any(isinstance(a, PackedSequence) for a in leaves)

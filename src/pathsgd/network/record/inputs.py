"""The arguments of one call of a model, with tensors anywhere in them.

Tensors may lie in tuples, lists and dictionaries, and in objects (dataclasses, graphs with edges).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
# Not every callable: graphs of torch_geometric are callable and hold tensors.
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def call_of(model: nn.Module, inputs: Sequence[Any]) -> Call:
    """The call for example inputs; a single dictionary gives forward's arguments by name."""
    first = inputs[0] if len(inputs) == 1 and isinstance(model, nn.Module) else None
    if isinstance(first, Mapping) and first:
        signature = inspect.signature(model.forward)
        parameters = signature.parameters.items()
        names = [n for n, p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        try:
            signature.bind(**first)
        except TypeError:
            return Call(tuple(inputs))
        if not names or any(name in names for name in first):
            return Call((), dict(first))
    return Call(tuple(inputs))


def map_tensors(function: Callable[[Tensor], Any], call: Call) -> Call:
    """The call with function(tensor) for every tensor, in the order of `numbered_tensors`."""

    def mapped(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        held = _held(leaf)
        # A deep copy takes the tensors from the memo and copies the objects around them.
        return copy.deepcopy(leaf, {id(t): function(t) for t in held}) if held else leaf

    if _is_flat(call):
        return Call(tuple([mapped(a) for a in call.args]))
    args, kwargs = tree_map(mapped, (call.args, call.kwargs))
    return Call(args, kwargs)


def _is_flat(call: Call) -> bool:
    """Whether the arguments are tensors only: walking a tree costs a small net's step."""
    return not call.kwargs and all(isinstance(a, Tensor) for a in call.args)


def _leaves(call: Call) -> Sequence[Any]:
    return call.args if _is_flat(call) else tree_flatten((call.args, call.kwargs))[0]


def numbered_tensors(call: Call) -> list[Tensor]:
    """All tensors of a call, in a fixed order."""
    return [
        t for leaf in _leaves(call) for t in ([leaf] if isinstance(leaf, Tensor) else _held(leaf))
    ]


def objects_in(call: Call) -> list[Any]:
    """Everything in a call that is neither a tensor nor holds one."""
    return [leaf for leaf in _leaves(call) if not isinstance(leaf, Tensor) and not _held(leaf)]


def _held(item: Any) -> list[Tensor]:
    """The tensors in the attributes of an object, at any depth."""
    found: dict[int, Tensor] = {}
    waiting, seen = [item], set()
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, (*_PLAIN, *_CODE, nn.Module)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.setdefault(id(one), one)
        elif isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif dataclasses.is_dataclass(one):  # its slots are not in a dictionary
            waiting.extend(getattr(one, entry.name) for entry in dataclasses.fields(one))
        elif hasattr(one, "__dict__"):
            waiting.extend(vars(one).values())
    return list(found.values())


def is_sparse(a: Any) -> bool:
    """Whether this is a tensor in a sparse layout (an adjacency matrix, for example)."""
    return isinstance(a, Tensor) and a.layout != torch.strided


def is_packed(call: Call) -> bool:
    """Whether a packed sequence is among the inputs: its rows differ in length."""
    leaves, _ = tree_flatten(
        (call.args, call.kwargs), is_leaf=lambda a: isinstance(a, PackedSequence)
    )
    return any(isinstance(a, PackedSequence) for a in leaves)

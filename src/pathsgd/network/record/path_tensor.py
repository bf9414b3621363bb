"""What stands for tensors while a forward pass is recorded: shape, dtype and device, and no data."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.origins import PLAIN, Origin
from pathsgd.network.tape import Value


@dataclass(eq=False)
class Lost(Value):
    """What an operation without a rule made; the refusal says which, where and what to do."""

    refusal: UnsupportedOperation


class Watcher(TorchFunctionMode):
    """A mode that sees the functions which a model calls."""

    met_unseen: UnsupportedOperation | None = None
    """The refusal of an operation in code that the mode does not see into."""


class PathTensor(Tensor):
    """A tensor without data that stands for one `Value` while the user's forward runs."""

    value: Value
    known: Tensor | None = None
    """Its values, if it is made of inputs and constants alone."""
    origin: Origin = PLAIN
    """The inputs that those values come from."""
    sharing: dict[int, weakref.ref[PathTensor]]
    """All tensors that would share this one's memory, itself included, by id."""
    borrowed: bool
    """Whether it would share the memory of a parameter or another tensor that is not the recorder's own."""

    @staticmethod
    def __new__(cls: type[PathTensor], value: Value, device: torch.device) -> PathTensor:
        tensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=device)  # type: ignore[attr-defined]
        tensor.value = value
        tensor.sharing, tensor.borrowed = {id(tensor): weakref.ref(tensor)}, False
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Compiled or scripted code comes here without passing the mode, and may wrap what is raised.
        refusal = UnsupportedOperation(
            str(func), "compiled or scripted code", "measure the plain eager module instead"
        )
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, Watcher):
                mode.met_unseen = refusal
        raise refusal

    def __deepcopy__(self, memo: Any) -> PathTensor:  # type: ignore[override]
        # An object of the model's own (a policy's distribution) may have kept it; a copy of that model must not fail.
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PathTensor({self.value.kind.value}, shape={tuple(self.value.shape)})"


def known_values(a: Any) -> Any:
    """The values of a tensor that is made of inputs and constants alone; anything else as it is."""
    return a.known if isinstance(a, PathTensor) and a.known is not None else a


def without_data(a: Any) -> Any:
    """Zeros in the place of a tensor that has no data; anything else as it is."""
    return torch.zeros(a.shape, dtype=a.dtype, device=a.device) if isinstance(a, PathTensor) else a


def share_memory(operands: list[Tensor], tensors: tuple[Any, ...]) -> None:
    """Results that are views: a change of one would be seen in the others."""
    for tensor in (t for t in tensors if isinstance(t, PathTensor)):
        for source in operands:
            if isinstance(source, PathTensor):
                source.sharing[id(tensor)] = weakref.ref(tensor)
                tensor.sharing, tensor.borrowed = source.sharing, source.borrowed
            else:
                tensor.borrowed = True

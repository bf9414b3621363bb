"""Stand-ins for tensors while a forward pass is recorded, and the origins of values."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.tape import Value


@dataclass(frozen=True)
class Origin:
    """What the values of a tensor depend on.

    inputs: the numbers of the model's inputs. The values of a boolean or integer input are either
        looked up (words in an embedding) or structure (a mask, lengths, the edges of a graph).
    random: whether random numbers were drawn for it in the forward pass.
    """

    inputs: frozenset[int] = frozenset()
    random: bool = False


CONSTANT = Origin()


def joined(origins: Iterable[Origin], *, random: bool = False) -> Origin:
    """The origin of a tensor that is computed from several."""
    every = list(origins)
    inputs = frozenset().union(*(o.inputs for o in every))
    return Origin(inputs, random or any(o.random for o in every))


@dataclass(eq=False)
class Lost(Value):
    """The result of an operation without a rule; an error only if a measured output needs it."""

    refusal: UnsupportedOperation


class PathTensor(Tensor):
    """A tensor with a shape, dtype and device but no data; it stands for one `Value`."""

    value: Value
    known: Tensor | None = None
    """Its values, if it is computed from inputs and constants alone."""
    origin: Origin = CONSTANT
    """The origin of those values."""
    sharing: dict[int, weakref.ref[PathTensor]]
    """All tensors that would share this tensor's memory, itself included, by id."""
    borrowed: bool
    """Whether it would share the memory of a parameter or of a tensor with data."""

    @staticmethod
    def __new__(cls: type[PathTensor], value: Value, device: torch.device) -> PathTensor:
        tensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=device)  # type: ignore[attr-defined]
        tensor.value = value
        tensor.sharing, tensor.borrowed = {id(tensor): weakref.ref(tensor)}, False
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Compiled or scripted code bypasses the recorder and may wrap what is raised here.
        refusal = UnsupportedOperation(
            str(func), "compiled or scripted code", "measure the plain eager module instead"
        )
        for mode in _get_current_function_mode_stack():
            if hasattr(mode, "met_unseen"):
                mode.met_unseen = refusal
        raise refusal

    def __deepcopy__(self, memo: Any) -> PathTensor:  # type: ignore[override]
        # An object of the model (a policy's distribution) may hold it when the model is copied.
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PathTensor({self.value.kind.value}, shape={tuple(self.value.shape)})"


def is_lost(a: Any) -> bool:
    """Whether this is the result of an operation without a rule."""
    return isinstance(a, PathTensor) and isinstance(a.value, Lost)


def known_values(a: Any) -> Any:
    """The values of a tensor computed from inputs and constants; anything else unchanged."""
    return a.known if isinstance(a, PathTensor) and a.known is not None else a


def zeros_for(a: Any) -> Any:
    """Zeros in the place of a tensor without data; anything else unchanged."""
    return torch.zeros(a.shape, dtype=a.dtype, device=a.device) if isinstance(a, PathTensor) else a


def share_memory(operands: list[Tensor], tensors: tuple[Any, ...]) -> None:
    """Note that results are views: an in-place change of one would change the others."""
    for tensor in (t for t in tensors if isinstance(t, PathTensor)):
        for source in operands:
            if isinstance(source, PathTensor):
                source.sharing[id(tensor)] = weakref.ref(tensor)
                tensor.sharing, tensor.borrowed = source.sharing, source.borrowed
            else:
                tensor.borrowed = True

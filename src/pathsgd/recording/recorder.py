"""Watches a forward pass and writes down every operation through which paths flow.

A `TorchFunctionMode` sees each torch function the model calls, methods and operators included. Tensors that carry
paths are `PathTensor`s: they have shape, dtype and device, and no data. An operation that meets one of them or a
parameter becomes a `Step` with its rule; an operation without a rule raises and is never passed through.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, resolve_name

from pathsgd.errors import UnsupportedOperation
from pathsgd.recording import spelling
from pathsgd.rules import REFUSED, RULES, Kind, Refusal, Rule
from pathsgd.tape import Recording, Step, Value, leaves, map_leaves, values_in


class PathTensor(Tensor):
    """A tensor without data that stands for one `Value` while the user's forward runs."""

    value: Value
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
        refusal = UnsupportedOperation(str(func), "compiled or scripted code", "measure the plain eager module instead")
        for mode in _get_current_function_mode_stack():
            if isinstance(mode, Recorder):
                mode.met_unseen = refusal
        raise refusal

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PathTensor({self.value.kind.value}, shape={tuple(self.value.shape)})"


def is_recording() -> bool:
    """Whether a model is being recorded right now: what forward hooks see then is not data."""
    return any(isinstance(mode, Recorder) for mode in _get_current_function_mode_stack())


class Recorder(TorchFunctionMode):
    """While active, everything that happens to the model's parameters and inputs goes into `recording`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self.met_unseen: UnsupportedOperation | None = None
        """The refusal of an operation in code that the mode does not see into."""
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._modules = {id(m): name for name, m in model.named_modules()}
        self._buffers = {id(b) for b in model.buffers()}
        # Plain tensors that paths were written into (x[i] = y); holding them keeps their ids their own.
        self._written: dict[int, tuple[Tensor, Value]] = {}
        # Integer inputs and what is made of them, and whether they are surely indices: a vector may hold lengths.
        self._indices: dict[int, tuple[Tensor, bool]] = {}

    def input(self, tensor: Tensor) -> Tensor:
        """A stand-in for an input of the model; integers choose rows of embeddings and stay."""
        if tensor.is_floating_point():
            return self._stand_in(tensor, tensor.dtype)
        if tensor.dtype is not torch.bool:
            self._indices[id(tensor)] = (tensor, tensor.dim() != 1)
        return tensor

    def _stand_in(self, tensor: Tensor, dtype: torch.dtype) -> PathTensor:
        value = Value(Kind.INPUT, tensor.shape, dtype)
        self.recording.inputs.append(value)
        return PathTensor(value, tensor.device)

    def value_of(self, a: Any) -> Any:
        """The recorded value behind a tensor, or the object itself when it carries no paths."""
        if isinstance(a, PathTensor):
            return a.value
        if not isinstance(a, Tensor):
            return a
        if id(a) in self._written:
            return self._written[id(a)][1]
        name = self._parameters.get(id(a))
        if name is not None:
            return self.recording.parameters.setdefault(name, Value(Kind.WEIGHT, a.shape, a.dtype))
        if isinstance(a, nn.Parameter):
            raise ValueError(
                f"a Parameter of shape {tuple(a.shape)} is used in {self._where()} but not registered in the model; "
                "assign it to a module attribute or use torch.nn.ParameterList"
            )
        # Buffers are read anew at every evaluation; other constants as they are now, whatever happens to them later.
        return a if id(a) in self._buffers else a.clone()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = spelling.canonical_name(func)
        tensors = [a for a in leaves((args, kwargs)) if isinstance(a, Tensor)]
        if not any(self._is_ours(a) for a in tensors):
            return self._without_path(func, name, args, kwargs, tensors)
        if getattr(func, "__name__", "") == "requires_grad_":
            return args[0]
        if name.removesuffix(".__get__") in spelling.METADATA or (name == "type" and len(args) == 1 and not kwargs):
            return func(*args, **kwargs)
        if name in spelling.LIKE or (name in spelling.LIKE_SECOND and not self._is_ours(args[0])):
            return _initialised(name, func(*map_leaves(_without_data, args), **kwargs))
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        return self._record(func, name, tuple(args), kwargs, tensors)

    def _is_ours(self, a: Any) -> bool:
        return isinstance(a, (PathTensor, nn.Parameter)) or id(a) in self._parameters or id(a) in self._written

    def _without_path(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """An operation that meets neither parameters nor floating-point inputs: torch's business, with exceptions."""
        if self._written and any(self._shares_written_memory(a) for a in tensors):
            self._refuse(name, "it uses a view of a tensor that paths were written into since; use the tensor itself")
        indices = [self._indices[id(a)] for a in tensors if id(a) in self._indices]
        if indices and name == "embedding":  # of a fixed table: another form of the input
            return self._record(func, name, tuple(args), kwargs, tensors)
        result = _initialised(name, func(*args, **kwargs))
        if indices and name == "one_hot":
            return self._stand_in(result, torch.get_default_dtype())
        strict = any(surely for _, surely in indices)
        for r in leaves(result) if indices and name not in spelling.LIKE else []:
            if isinstance(r, Tensor) and r.is_floating_point() and strict:
                self._refuse(name, "it uses an integer input as numbers; pass floating-point numbers, or embed indices")
            if isinstance(r, Tensor) and r.dtype is not torch.bool and not r.is_floating_point():
                self._indices[id(r)] = (r, strict)
        return result

    def _shares_written_memory(self, a: Tensor) -> bool:
        storage = a.untyped_storage().data_ptr()
        return any(t.untyped_storage().data_ptr() == storage for t, _ in self._written.values())

    def _refuse(self, operation: str, advice: str) -> NoReturn:
        raise UnsupportedOperation(operation, self._where(), advice, self.recording)

    def _record(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
    ) -> Any:
        rule = RULES.get(name)
        if rule is None:
            unknown = "rewrite it with supported operations (docs/rules.md lists them), or add a rule"
            self._refuse(resolve_name(func) or name, REFUSED.get(name, unknown))
        if kwargs.get("out") is not None:
            self._refuse(name, "out= writes where paths cannot follow; use the result")
        if rule.moves and any(self._indices.get(id(a), (a, False))[1] for a in operands):
            self._refuse(name, "an integer input chooses entries; look them up with torch.nn.functional.embedding")
        target = self._target(name, args, kwargs) if spelling.changes_its_operand(func, name, args, kwargs) else None
        values, named = map_leaves(lambda a: self.value_of(a), spelling.uniform_arguments(args, kwargs))
        try:
            values = rule.rewrite(*values)
            _check_call(rule, len(values), tuple(named))
            rule.check(*values, **named)
            rule.check_products(*values, **named)
        except Refusal as refusal:
            self._refuse(name, str(refusal))
        results, single, pack = _shapes(func, rule, values, named)
        kind = rule.result_kind(v.kind for v in values_in((values, named)))
        outputs = tuple(Value(kind, r.shape, r.dtype) if r.is_floating_point() else None for r in results)
        self.recording.steps.append(Step(name, rule, values, named, outputs, self._where()))
        if target is not None:
            assert outputs[0] is not None
            return self._overwrite(target, outputs[0], name)
        tensors = tuple(r if v is None else PathTensor(v, operands[0].device) for v, r in zip(outputs, results))
        if rule.aliases:
            _share_memory(operands, tensors)
        return tensors[0] if single else pack(tensors)

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tensor an in-place operation changes; refused where the change would reach other tensors unseen."""
        target = args[0] if args else kwargs["input"]
        if isinstance(target, PathTensor):
            if target.value in self.recording.inputs:
                reason = "it changes the model's input in place; use the out-of-place form"
            elif target.borrowed:
                reason = "it changes a parameter or a collecting tensor through a view; use the out-of-place form"
            elif sum(tensor() is not None for tensor in target.sharing.values()) > 1:
                reason = "it changes a tensor in place while a view of it is in use; use the out-of-place form"
            else:
                return target
        elif id(target) in self._parameters:
            reason = "parameters must not be changed in the forward pass"
        elif id(target) in self._buffers:
            reason = "it writes paths into a buffer, which would outlive the forward pass; use a tensor of its own"
        elif target._is_view():
            reason = "it writes paths into a view of a plain tensor; collect results with torch.stack or with x[i] = y"
        else:
            return target
        self._refuse(f"{name} (in place)", reason)

    def _overwrite(self, target: Tensor, value: Value, name: str) -> Tensor | None:
        if isinstance(target, PathTensor):
            target.value = value
        else:
            self._written[id(target)] = (target, value)
        return None if name == "__setitem__" else target

    def _where(self) -> str:
        """The innermost module whose forward is running, found on the call stack: no hooks, nothing to undo."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if "self" in frame.f_code.co_varnames[:1]:
                name = self._modules.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return f"module '{name}'" if name else "the model itself"
            frame = frame.f_back
        return "the model itself"


def _initialised(name: str, result: Any) -> Any:
    return result.zero_() if name in spelling.UNINITIALISED else result


def _without_data(a: Any) -> Any:
    return torch.zeros(a.shape, dtype=a.dtype, device=a.device) if isinstance(a, PathTensor) else a


@lru_cache(maxsize=4096)
def _check_call(rule: Rule, count: int, names: tuple[str, ...]) -> None:
    """Refuse a call that the rule's `squared` could not take, here where the operation can still be named."""
    try:
        inspect.signature(rule.squared).bind(None, *[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        raise Refusal(
            f"its rule does not know this form of call ({error}); pass the usual arguments by position"
        ) from None


def _shapes(func: Any, rule: Rule, args: Any, kwargs: Any) -> tuple[list[Tensor], bool, Callable[[Any], Any]]:
    """Tensors without data of the results' shapes and dtypes, whether there is just one, and what torch puts them in.

    torch.max and its like return tuples with names.
    """

    def empty(a: Any) -> Any:
        if isinstance(a, Value):
            return torch.empty(a.shape, dtype=a.dtype, device="meta")
        if not isinstance(a, Tensor):
            return a
        return a.to("meta") if a.is_floating_point() else a.cpu()  # what integers hold may decide the shape

    with torch._C.DisableTorchFunction():
        result = rule.shape(func, *map_leaves(empty, (args, kwargs)))
    if isinstance(result, Tensor):
        return [result], True, tuple
    return list(result), False, type(result) if type(result).__module__ == "torch.return_types" else tuple


def _share_memory(operands: list[Tensor], tensors: tuple[Any, ...]) -> None:
    for tensor in (t for t in tensors if isinstance(t, PathTensor)):
        for source in operands:
            if isinstance(source, PathTensor):
                source.sharing[id(tensor)] = weakref.ref(tensor)
                tensor.sharing, tensor.borrowed = source.sharing, source.borrowed
            else:
                tensor.borrowed = True

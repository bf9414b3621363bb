"""Watches a forward pass and writes down every operation through which paths flow.

A `TorchFunctionMode` sees each torch function the model calls, methods and operators included. Tensors that carry
paths are `PathTensor`s: they have shape, dtype and device, and no data. An operation that meets one of them or a
parameter becomes a `Step` with its rule; an operation without a rule raises and is never passed through.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from pathsgd.errors import UnsupportedOperation
from pathsgd.rules import REFUSED, RULES, Kind, Refusal, Rule
from pathsgd.rules.base import Recording, Step, Value


class PathTensor(Tensor):
    """A tensor without data that stands for one `Value` while the user's forward runs."""

    value: Value
    sharing: weakref.WeakSet[PathTensor]
    """All living tensors that would share this one's memory, itself included."""

    @staticmethod
    def __new__(cls, value: Value, device: torch.device) -> PathTensor:
        tensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=device)  # type: ignore[attr-defined]
        tensor.value = value
        tensor.sharing = weakref.WeakSet([tensor])
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Compiled or scripted code comes here without passing the mode.
        raise UnsupportedOperation(str(func), "compiled or scripted code", "measure the plain eager module instead")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PathTensor({self.value.kind.value}, shape={tuple(self.value.shape)})"

    def __hash__(self) -> int:
        return id(self)


_PREFIXES = ("torch.nn.functional.", "torch.Tensor.", "torch._C._nn.", "torch._VF.", "torch.")

# Questions about a tensor that need no value.
_METADATA = frozenset(
    [
        "shape",
        "size",
        "dim",
        "ndim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_contiguous",
        "dtype",
        "device",
        "layout",
        "itemsize",
        "nbytes",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_conj",
        "is_neg",
        "is_inference",
        "is_nested",
        "is_sparse",
        "is_quantized",
        "is_cuda",
        "is_cpu",
        "is_mps",
        "is_meta",
        "is_xpu",
        "is_mkldnn",
        "get_device",
        "is_same_size",
        "is_pinned",
        "is_shared",
        "is_leaf",
        "requires_grad",
        "retains_grad",
        "grad",
        "grad_fn",
        "names",
        "output_nr",
        "_version",
        "_is_view",
        "_base",
        "_backward_hooks",
        "__hash__",
        "__repr__",
        "__len__",
    ]
)
# Make new tensors after the fashion of another: constants.
_LIKE = frozenset(
    [
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "new_tensor",
    ]
)
_IN_PLACE = frozenset({"__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__"})


def canonical_name(function: Callable[..., Any]) -> str:
    """`torch.Tensor.relu_`, `torch.relu` and `torch.nn.functional.relu` are all `relu`."""
    name = resolve_name(function) or getattr(function, "__qualname__", repr(function))
    prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
    name = name.removeprefix(prefix)
    return name if name.endswith("__") else name.removesuffix("_")


def _changes_its_operand(function: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    raw = getattr(function, "__name__", "")
    if raw.endswith("_") and not raw.endswith("__"):
        return name not in ("requires_grad", "detach")
    flag = kwargs.get("inplace") is True or (name == "relu" and len(args) > 1 and args[1] is True)
    return flag or name in _IN_PLACE


class Recorder(TorchFunctionMode):
    """While active, everything that happens to the model's parameters and inputs goes into `recording`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._modules = {id(m): name for name, m in model.named_modules()}
        # Plain tensors that paths were written into (x[i] = y); holding them keeps their ids their own.
        self._written: dict[int, tuple[Tensor, Value]] = {}

    def input(self, tensor: Tensor) -> PathTensor:
        """A stand-in for a floating-point input of the model."""
        value = Value(Kind.INPUT, tensor.shape, tensor.dtype)
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
        return a

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(self._is_ours(a) for a in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = canonical_name(func)
        if name.removesuffix(".__get__") in _METADATA:
            return func(*args, **kwargs)
        if name in _LIKE:
            return func(*tree_map(_without_paths, args), **kwargs)
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        return self._record(func, name, tuple(args), kwargs)

    def _is_ours(self, a: Any) -> bool:
        if not isinstance(a, Tensor):
            return False
        return isinstance(a, (PathTensor, nn.Parameter)) or id(a) in self._parameters or id(a) in self._written

    def _record(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = RULES.get(name)
        if rule is None:
            advice = REFUSED.get(
                name, "rewrite it with supported operations (pathsgd.explain lists them), or add a rule"
            )
            raise UnsupportedOperation(resolve_name(func) or repr(func), self._where(), advice)
        target = self._target(name, args, kwargs) if _changes_its_operand(func, name, args, kwargs) else None
        if kwargs.get("out") is not None:
            raise UnsupportedOperation(name, self._where(), "out= writes where paths cannot follow; use the result")
        values, named = tree_map(
            self.value_of, (args, {k: v for k, v in kwargs.items() if k not in ("inplace", "out")})
        )
        try:
            values = rule.rewrite(*values)
            rule.check(*values, **named)
            rule.check_factors(*values, **named)
        except Refusal as refusal:
            raise UnsupportedOperation(name, self._where(), str(refusal)) from None
        results, single = _shapes(func, rule, values, named)
        kind = rule.result_kind(o.kind for o in tree_leaves((values, named)) if isinstance(o, Value))
        outputs = tuple(Value(kind, r.shape, r.dtype) if r.is_floating_point() else None for r in results)
        self.recording.steps.append(Step(name, rule, values, named, outputs, single, self._where()))
        if target is not None:
            assert outputs[0] is not None
            return self._overwrite(target, outputs[0], name)
        device = next(a.device for a in tree_leaves((args, kwargs)) if self._is_ours(a))
        tensors = tuple(r if v is None else PathTensor(v, device) for v, r in zip(outputs, results))
        if rule.aliases:
            _share_memory(args, tensors)
        return tensors[0] if single else tensors

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tensor an in-place operation changes; refused where the change would reach other tensors unseen."""
        target = args[0] if args else kwargs["input"]
        if isinstance(target, PathTensor):
            if target.value in self.recording.inputs:
                reason = "it changes the model's input in place; use the out-of-place form"
            elif len(target.sharing) > 1:
                reason = "it changes a tensor in place while a view of it is in use; use the out-of-place form"
            else:
                return target
        elif id(target) in self._parameters:
            reason = "parameters must not be changed in the forward pass"
        elif name != "__setitem__" or target._is_view():
            reason = "it writes paths into a plain tensor; collect results with torch.stack or with x[i] = y"
        else:
            return target
        raise UnsupportedOperation(f"{name} (in place)", self._where(), reason)

    def _overwrite(self, target: Tensor, value: Value, name: str) -> Tensor | None:
        if isinstance(target, PathTensor):
            target.value = value
        else:
            self._written[id(target)] = (target, value)
        return None if name == "__setitem__" else target

    def _where(self) -> str:
        """The innermost module whose forward is running, found on the call stack: no hooks, nothing to undo."""
        frame = sys._getframe(1)
        while frame is not None:
            name = self._modules.get(id(frame.f_locals.get("self")))
            if name is not None:
                return f"module '{name}'" if name else "the model itself"
            frame = frame.f_back  # type: ignore[assignment]
        return "the model itself"


def _without_paths(a: Any) -> Any:
    return torch.empty(a.shape, dtype=a.dtype, device=a.device) if isinstance(a, PathTensor) else a


def _shapes(func: Any, rule: Rule, args: Any, kwargs: Any) -> tuple[list[Tensor], bool]:
    """Tensors without data of the results' shapes and dtypes, and whether there is just one."""

    def empty(a: Any) -> Any:
        if isinstance(a, Value):
            return torch.empty(a.shape, dtype=a.dtype, device="meta")
        return a.to("meta") if isinstance(a, Tensor) and a.is_floating_point() else a

    with torch._C.DisableTorchFunction():
        result = rule.shape(func, *tree_map(empty, (args, kwargs)))
    return ([result], True) if isinstance(result, Tensor) else (list(result), False)


def _share_memory(args: Any, tensors: tuple[Any, ...]) -> None:
    for source in (a for a in tree_leaves(args) if isinstance(a, PathTensor)):
        for tensor in (t for t in tensors if isinstance(t, PathTensor)):
            source.sharing.add(tensor)
            tensor.sharing = source.sharing

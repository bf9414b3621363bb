"""A device that is not the CPU, on a machine that has none.

`model.to(DEVICE)` moves a model to the device "elsewhere", which is a real torch device: factory
functions make tensors there, autograd runs its backward passes there, torch.optim takes its foreach
path. The data are in CPU memory, behind the tensors, and each operation is computed there. What a
GPU would refuse is refused here as well:

    tensors of two devices in one operation (as on a GPU, a CPU tensor without dimensions may
    meet a pointwise operation, and a CPU tensor may index)
    the address of the data (`data_ptr`), numpy, `tolist` (on a GPU `tolist` waits and copies;
    here it is an error)

`counting()` counts what a step costs on such a device:

    launches   operations on the device; a whole `torch._foreach_*` call is one of them
    syncs      moments at which the host waits for the device: a value is read back, a tensor is
               copied to the host, the size of a result depends on data, or a CPU tensor is
               copied to the device without non_blocking
    names      how often each operation was launched, for messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
except ImportError:
    pytest.skip("this torch knows no devices written in Python", allow_module_level=True)

NAME = "elsewhere"
DEVICE = torch.device("privateuseone:0")  # its name is NAME as soon as the device is registered

# Copies are what brings data from one device to another.
_COPIES = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}
# An index may come from the CPU, and is then copied to the device first.
_INDEXING = {
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
}
# Lengths lie on the CPU, also for sequences that lie elsewhere.
_WITH_LENGTHS = {"_pack_padded_sequence", "_pad_packed_sequence", "_pack_padded_sequence_backward"}
# No computation: memory is allocated, or the result is a view although the schema does not say so.
_FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "lift_fresh",
    "lift",
}
# The host must know a value before it can go on, and the schema cannot tell.
_WAITING = {
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
}


@dataclass
class Counts:
    launches: int = 0
    syncs: int = 0
    names: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


_counting: list[Counts] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what happens on the device inside."""
    counts = Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)


def _count_launch(name: str) -> None:
    for counts in _counting:
        counts.launches += 1
        counts.names[name] += 1


def _count_sync(name: str) -> None:
    for counts in _counting:
        counts.syncs += 1
        counts.waits[name] += 1


class DeviceTensor(Tensor):
    """A tensor on the device; `_data` is the CPU tensor behind it, with its strides and memory."""

    _data: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> DeviceTensor:
        tensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=DEVICE,
        )  # fmt: skip
        tensor._data = data
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    # torch's names: with them Module.to swaps tensors in place, as on a GPU, and tied parameters
    # stay tied.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_data"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], meta: Any, size: Any, stride: Any
    ) -> DeviceTensor:
        return DeviceTensor(inner["_data"])

    def tolist(self) -> Any:
        raise RuntimeError("tolist() of a tensor on a device: the host would wait for it")

    def data_ptr(self) -> int:
        raise RuntimeError("data_ptr() of a tensor on a device: no host code can follow it")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = DeviceTensor(self._data.clone())
            copied.requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                copied._is_param = True  # type: ignore[attr-defined]
            copied.grad = None if self.grad is None else self.grad.__deepcopy__(memo)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (
            self._data.detach(),
            self.requires_grad,
            getattr(self, "_is_param", False),
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeviceTensor({self._data!r})"


def _rebuild(data: Tensor, requires_grad: bool, is_param: bool) -> Tensor:
    tensor = DeviceTensor(data).requires_grad_(requires_grad)
    if is_param:
        tensor._is_param = True  # type: ignore[attr-defined]
    return tensor


def to_cpu(thing: Any) -> Any:
    """Everything in a nested structure, copied from the device for a test, not counted."""
    return tree_map_only(DeviceTensor, lambda t: t._data.detach().clone(), thing)


# ---- how an operation is run ---------------------------------------------------------------------


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.split("::")[-1]
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    _check_devices(func, name, tensors)
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    leaves = asked is not None and asked.type != DEVICE.type
    _count(func, name, args, kwargs, tensors, to_host=asked is not None and asked.type == "cpu")
    inner_args, inner_kwargs = tree_map_only(DeviceTensor, lambda t: t._data, (args, kwargs))
    if asked is not None:
        inner_kwargs["device"] = asked if leaves else torch.device("cpu")
    inner_kwargs.pop("pin_memory", None)
    shapes = [(t, t._data.shape, t._data.stride()) for t in tensors if isinstance(t, DeviceTensor)]
    result = func(*inner_args, **inner_kwargs)
    _check_metadata(func, name, shapes)
    if leaves:
        return result
    if name == "copy_" and not isinstance(args[0], DeviceTensor):
        return args[0]
    wrapped = tree_map_only(Tensor, DeviceTensor, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _check_devices(func: Any, name: str, tensors: list[Tensor]) -> None:
    here = [t for t in tensors if not isinstance(t, DeviceTensor)]
    if not here or name in _COPIES or name in _WITH_LENGTHS:
        return
    if torch.Tag.pointwise in func.tags or name.startswith("_foreach"):
        here = [t for t in here if t.dim() > 0]
    if name in _INDEXING and isinstance(tensors[0], DeviceTensor):
        here = [
            t for t in here if t.dtype not in (torch.int64, torch.int32, torch.bool) and t.dim() > 0
        ]
    if here:
        where = [f"{t.device} {tuple(t.shape)}" for t in tensors]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, aten::{name} got {', '.join(where)}"
        )


def _count(
    func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], to_host: bool
) -> None:
    if not _counting:
        return
    uploads = any(not isinstance(t, DeviceTensor) for t in tensors)
    if name in _COPIES:
        blocking = not (
            kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
        )
        if to_host or not isinstance(args[0], DeviceTensor) or (uploads and blocking):
            _count_sync(name)
        _count_launch(name)
        return
    if name in _INDEXING and uploads:
        _count_sync(f"{name} with an index from the CPU")
    masks = name in _INDEXING and any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
    returns = func._schema.returns
    if masks or name in _WAITING or name in ("_local_scalar_dense", "equal"):
        _count_sync(name)
    if name == "_local_scalar_dense":
        return
    is_view = bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )
    if not (is_view or torch.Tag.inplace_view in func.tags or name in _FREE):
        _count_launch(name)


def _check_metadata(func: Any, name: str, before: list[tuple[DeviceTensor, Any, Any]]) -> None:
    if torch.Tag.inplace_view in func.tags:
        return  # return_and_correct_aliasing takes the new shape over
    for tensor, shape, stride in before:
        if tensor._data.shape != shape or tensor._data.stride() != stride:
            raise RuntimeError(
                f"aten::{name} resizes a tensor of shape {tuple(shape)}: give out= the right shape"
            )


# ---- the device is registered once, when this module is imported ---------------------------------


def _factory(func: Any) -> Callable[..., Any]:
    name = func._schema.name.split("::")[-1]

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Any:
        if name not in _FREE:
            _count_launch(name)
        return DeviceTensor(func(*args, device="cpu", **kwargs))

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """torch.tensor(numbers, device=...) copies with this, below __torch_dispatch__."""
    return _run(torch.ops.aten.copy_.default, (target, source, non_blocking), {})


def _factories() -> Iterator[tuple[str, Any]]:
    """Every aten operation that makes a tensor on a device from no other tensor."""
    for qualified in torch._C._dispatch_get_all_op_names():
        space, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if space != "aten":
            continue
        func = getattr(getattr(torch.ops.aten, name), overload or "default")
        arguments, returns = func._schema.arguments, func._schema.returns
        has_device = any(a.name == "device" for a in arguments)
        from_nothing = len(returns) == 1 and not any("Tensor" in str(a.type) for a in arguments)
        if (
            has_device
            and from_nothing
            and str(returns[0].type) == "Tensor"
            and "sparse" not in name
        ):
            yield qualified, func


class _Module:
    """What torch asks of `torch.elsewhere`."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    capturing = False
    """A test says so."""

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Random numbers come from the CPU's generator."""

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        """The CPU's generator is put back by whoever forks it."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def _register() -> torch.library.Library:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    for qualified, func in _factories():
        library.impl(qualified.removeprefix("aten::"), _factory(func), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    return library


_LIBRARY = _register()  # the registrations live as long as this object
# Otherwise autograd's own thread computes backward passes there, and crashes if Python ends first.
torch.autograd.set_multithreading_enabled(False)
torch.serialization.add_safe_globals([_rebuild])

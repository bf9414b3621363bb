"""The border to C++: which tensors may cross it, the types and fields of its structures, and the one way to call.

An operation asks `accepts` whether the kernel may have these tensors, gives each of them to `address` with the dtype
and shape that the kernel will take it for, and calls the kernel by `call`. Nothing else hands out a pointer.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from pathsgd.kernels import loader

INT, REAL, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
C_TYPES = {torch.float32: "float", torch.float64: "double"}
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)

_NO_MEMORY, _NO_SUCH_CLASS = 1, 2  # `Result` of entry.h


class NoSuchClassError(Exception):
    """A target is not one of the classes."""


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Fields of one type in a structure."""
    return [(name, kind) for name in names.split()]


def accepts(*tensors: Tensor | None) -> bool:
    """Whether there is a kernel and the numbers of these tensors are those in their memory: plain, dense, on the CPU.

    A subclass, another device or layout, a fake tensor or the wrapper of a transform is torch's own affair.
    """
    if loader.library() is None:
        return False
    try:
        for t in tensors:
            if t is None:
                continue
            if (
                type(t) not in PLAIN_TENSORS
                or not t.is_cpu
                or t.is_neg()
                or not (t.data_ptr() or t.numel() == 0)
            ):
                return False
    except (
        RuntimeError
    ):  # torch's answer when a layout or a wrapper is asked for memory that it does not have
        return False
    return True


def address(tensor: Tensor | None, dtype: torch.dtype, *shape: int, offset: int = 0) -> int | None:
    """Where the entry at `offset` of a dense CPU tensor of this dtype and shape lies; None for no tensor."""
    if tensor is None:
        return None
    if (
        tensor.dtype is not dtype
        or tensor.shape != shape
        or not tensor.is_contiguous()
        or not tensor.is_cpu
    ):
        raise ValueError(
            f"the kernel expects a contiguous {dtype} CPU tensor of shape {shape}, not {tensor.dtype} "
            f"{tuple(tensor.shape)} with strides {_strides(tensor)} on {tensor.device}"
        )
    return tensor.data_ptr() + offset * tensor.itemsize if offset else tensor.data_ptr()


def _strides(tensor: Tensor) -> object:
    return tensor.stride() if tensor.layout is torch.strided else tensor.layout


@functools.cache
def _symbol(operation: str, *dtypes: torch.dtype) -> str:
    return "_".join(["pathsgd", operation, *(C_TYPES[dtype] for dtype in dtypes)])


def call(operation: str, arguments: ctypes.Structure, *dtypes: torch.dtype) -> None:
    """Run the kernel's `operation` for these types of numbers."""
    result = getattr(loader.library(), _symbol(operation, *dtypes))(ctypes.byref(arguments))
    if result == _NO_SUCH_CLASS:
        raise NoSuchClassError
    if result:
        raise MemoryError(f"{operation} could not allocate its working memory")

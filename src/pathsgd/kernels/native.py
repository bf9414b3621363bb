"""The compiled kernels: found and loaded once, what they may take, and the one way to call them.

The build makes up to four small libraries beside this file: `kernel_generic`, `kernel_avx2` and
`kernel_avx512` from one source, and `threads`, which lends the kernels torch's own OpenMP threads.
Each may be missing. Without a kernel torch does the work; without `threads` a kernel uses one
thread.

An operation asks `accepts` whether the kernel may have these tensors, gives each of them to
`address` with the dtype and shape that the kernel will take it for, and calls the kernel by `call`.
Nothing else hands out a pointer.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

INTERFACE_VERSION = 18  # pathsgd_interface_version() of kernel.cpp
KERNELS = ("generic", "avx2", "avx512")  # position = the processor level it needs
ENVIRONMENT_VARIABLE = "PATHSGD_NATIVE"
INT, REAL, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
C_TYPES = {torch.float32: "float", torch.float64: "double"}
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)

_NO_MEMORY, _NO_SUCH_CLASS = 1, 2  # `Result` of entry.h


class Backend(NamedTuple):
    """What computes the fused operations, and why."""

    name: str
    """`avx512`, `avx2`, `generic`, or `torch` for the pure-torch fallback."""
    threaded: bool
    """Whether the kernel can share the batch out to several threads."""
    reason: str

    def __str__(self) -> str:
        if self.name == "torch":
            return f"pure torch fallback: {self.reason}"
        return (
            f"{self.name} kernel, {'torch threads' if self.threaded else 'one thread'}: "
            f"{self.reason}"
        )


class Loaded(NamedTuple):
    """A backend and, unless it is the fallback, its library."""

    backend: Backend
    library: Any  # ctypes.CDLL | None: its functions are looked up by name


def choose(forced: str | None, level: int, built: dict[str, str]) -> tuple[str, str]:
    """Name and reason of the kernel to use.

    forced: value of the environment variable, or None; level: what the processor supports (position
    in KERNELS);
    built: kernel name -> "" when it can be loaded, else why not.
    """
    if forced == "0":
        return "torch", f"{ENVIRONMENT_VARIABLE}=0 asks for it"
    if forced is not None:
        if forced not in KERNELS:
            raise ValueError(
                f"{ENVIRONMENT_VARIABLE}={forced!r} is not one of 0, {', '.join(KERNELS)}"
            )
        if KERNELS.index(forced) > level:
            raise RuntimeError(
                f"{ENVIRONMENT_VARIABLE}={forced}, but this processor supports "
                f"{KERNELS[level]} at most"
            )
        if built.get(forced, "not built"):
            raise RuntimeError(
                f"{ENVIRONMENT_VARIABLE}={forced}, but that kernel is missing: {built[forced]}"
            )
        return forced, f"{ENVIRONMENT_VARIABLE}={forced} asks for it"
    for name in reversed(KERNELS[: level + 1]):
        if not built[name]:
            return name, "best that was built for this processor"
    return "torch", built["generic"]


def _open(name: str) -> tuple[Any, str]:
    """A library of the build and "", or None and what is wrong with it."""
    path = Path(__file__).with_name(f"{name}.so")
    if not path.exists():
        return (
            None,
            "no kernel was built (a C++ compiler was missing or failed when the package was "
            "installed)",
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"{path.name} cannot be loaded: {error}"
    if (
        name.startswith("kernel_")
        and (version := library.pathsgd_interface_version()) != INTERFACE_VERSION
    ):
        return (
            None,
            f"{path.name} is of another version ({version}, not {INTERFACE_VERSION}): "
            "install the package again",
        )
    return library, ""


def _lend_threads(library: Any) -> str:
    """Let a kernel use torch's threads; returns "" or why it cannot."""
    threads, problem = _open("threads")
    if threads is not None:
        library.pathsgd_set_thread_runner(ctypes.cast(threads.pathsgd_run_threads, ctypes.c_void_p))
    return problem


@functools.cache
def load() -> Loaded:
    """The kernel for this process. PATHSGD_NATIVE=0|generic|avx2|avx512 overrides the choice."""
    opened = {name: _open(f"kernel_{name}") for name in KERNELS}
    generic = opened["generic"][0]
    # Opening a library runs none of its vector code, so the generic one may be asked before any is
    # chosen.
    level = int(generic.pathsgd_processor_level()) if generic is not None else 0
    forced = os.environ.get(ENVIRONMENT_VARIABLE) or None
    name, reason = choose(
        forced, level, {kernel: problem for kernel, (_, problem) in opened.items()}
    )
    if name == "torch":
        return Loaded(Backend(name, True, reason), None)
    library = opened[name][0]
    problem = _lend_threads(library)
    return Loaded(
        Backend(name, not problem, f"{reason}; {problem}" if problem else reason), library
    )


def library() -> Any:
    """The kernel's library, None where torch does the work: the one place that hands it out."""
    return load().library


_forked = False


def _after_fork() -> None:
    # The parent's thread pool does not survive a fork, and GNU OpenMP waits for it for ever.
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):  # only systems that can fork have it
    os.register_at_fork(after_in_child=_after_fork)


def thread_count() -> int:
    """Threads a kernel may use: never more than torch, and one in a forked process."""
    return 1 if _forked else torch.get_num_threads()


class NoSuchClassError(Exception):
    """A target is not one of the classes."""


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Fields of one type in a structure."""
    return [(name, kind) for name in names.split()]


def is_plain(t: Tensor) -> bool:
    """Whether the numbers of a tensor are those in its memory: dense, on the CPU, read as they are.

    A subclass, another device or layout, a view that torch negates or conjugates on reading, a fake
    tensor, the wrapper of a transform and memory that was given away are left to torch.
    """
    if type(t) not in PLAIN_TENSORS or not t.is_cpu or t.layout is not torch.strided:
        return False
    try:  # a wrapper says that it has no storage
        return not (t.is_neg() or t.is_conj()) and bool(t.data_ptr() or not t.numel())
    except RuntimeError:
        return False


def accepts(*tensors: Tensor | None, dtype: torch.dtype | None = None) -> bool:
    """Whether there is a kernel for these tensors.

    Plain ones of float32 or float64, all of `dtype` if it is given.

    Every operation asks this of all its operands at every call.
    """
    if library() is None:
        return False
    for t in tensors:
        if t is not None and (
            t.dtype not in C_TYPES or not (dtype is None or t.dtype is dtype) or not is_plain(t)
        ):
            return False
    return True


_type_and_shape = operator.attrgetter("dtype", "shape")


def seen(tensors: Sequence[Tensor]) -> list[Any]:
    """What a kernel relies on in tensors it has accepted; compare before they are used again."""
    try:
        places = map(Tensor.data_ptr, tensors), map(Tensor.stride, tensors)
        return [*zip(*places, map(Tensor.is_neg, tensors), map(_type_and_shape, tensors))]
    except RuntimeError:  # some tensor has no memory any more
        return []


def address(tensor: Tensor | None, dtype: torch.dtype, *shape: int, offset: int = 0) -> int | None:
    """Where the entry at `offset` of a dense CPU tensor of this dtype and shape lies.

    None for no tensor.
    """
    if tensor is None:
        return None
    if (
        tensor.dtype is not dtype
        or tensor.shape != shape
        or not tensor.is_contiguous()
        or not tensor.is_cpu
    ):
        raise ValueError(
            f"the kernel expects a contiguous {dtype} CPU tensor of shape {shape}, "
            f"not {tensor.dtype} "
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
    result = getattr(library(), _symbol(operation, *dtypes))(ctypes.byref(arguments))
    if result == _NO_SUCH_CLASS:
        raise NoSuchClassError
    if result:
        raise MemoryError(f"{operation} could not allocate its working memory")

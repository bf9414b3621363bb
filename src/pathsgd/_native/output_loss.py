"""Cross-entropy of a linear layer with all its gradients, by the kernel. The structure mirrors cross_entropy.h's."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd._native import calls
from pathsgd._native.calls import C_TYPES, pointer
from pathsgd._native.loader import thread_count

CLASSES_PER_THREAD = 384
"""The kernel shares out classes: with several threads and fewer of them than this for each, torch does better."""

_NO_SUCH_CLASS = 2
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _CrossEntropyCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("rows", "inputs", "classes", "threads", "chunk", "ignore_index", "mean")),
        *((name, _POINTER) for name in ("h", "w", "bias", "target", "dh", "dw", "dbias")),
        ("loss", ctypes.c_double),
    ]


class CrossEntropy(NamedTuple):
    """The loss, a scalar, and its gradients; None for those that were not wanted."""

    loss: Tensor
    d_rows: Tensor | None
    d_weight: Tensor | None
    d_bias: Tensor | None


def can_compute_cross_entropy(classes: int) -> bool:
    """Whether there is a kernel and it is the best choice for this many classes."""
    threads = thread_count()
    return calls.load().library is not None and (threads == 1 or classes >= CLASSES_PER_THREAD * threads)


def cross_entropy(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    mean: bool,
    ignore_index: int,
    chunk: int,
    needs: tuple[bool, bool, bool],
) -> CrossEntropy:
    """Sum or mean of F.cross_entropy(F.linear(rows, weight, bias), target) over the rows not ignored.

    rows (R, I), weight (C, I), bias (C) or None, target (R) int64; chunk: rows of logits held at a time; needs: which
    gradients of rows, weight and bias are wanted. A target that is no class raises an IndexError.
    """
    given = [None if t is None else t.detach().contiguous() for t in (rows, weight, bias)]
    wanted = [None if t is None or not need else torch.empty_like(t) for t, need in zip(given, needs)]
    target = target.contiguous()
    call = _CrossEntropyCall(
        *(rows.shape[0], rows.shape[1], weight.shape[0], thread_count(), min(chunk, rows.shape[0]), ignore_index, mean),
        *(pointer(t) for t in (*given, target, *wanted)),
    )
    name = "pathsgd_cross_entropy_" + C_TYPES[rows.dtype]
    failure = getattr(calls.load().library, name)(ctypes.byref(call))
    if failure == _NO_SUCH_CLASS:
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= weight.shape[0]))][0]
        raise IndexError(f"Target {int(wrong)} is out of bounds.")  # in torch's words
    if failure:
        raise MemoryError(f"{name} could not allocate its working memory")
    return CrossEntropy(rows.new_tensor(call.loss), *wanted)

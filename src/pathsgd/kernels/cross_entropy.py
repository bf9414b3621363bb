"""Cross-entropy of a linear layer with all its gradients."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

CLASSES_PER_THREAD = 384
"""The kernel shares out classes: with several threads and fewer of them than this for each,
torch does better."""


class CrossEntropyCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "rows inputs classes threads chunk ignore_index mean"),
        *fields(POINTER, "h w bias target dh dw dbias"),
        ("loss", REAL),
    ]


class CrossEntropy(NamedTuple):
    """The loss, a scalar, and its gradients; None for those that were not wanted."""

    loss: Tensor
    d_rows: Tensor | None
    d_weight: Tensor | None
    d_bias: Tensor | None


def can_compute_cross_entropy(classes: int) -> bool:
    """Whether there is a kernel and it is the best choice for this many classes."""
    threads = native.thread_count()
    return native.library() is not None and (
        threads == 1 or classes >= CLASSES_PER_THREAD * threads
    )


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
    """Sum or mean of F.cross_entropy(F.linear(rows, weight, bias), target), ignored rows left out.

    rows (R, I), weight (C, I), bias (C) or None, target (R) int64; chunk: rows of logits held at a
    time; needs: which gradients of rows, weight and bias are wanted. A target that is no class
    raises an IndexError.
    """
    if not native.accepts(rows, weight, bias) or not native.is_plain(target):
        return CrossEntropy(*by_torch(rows, weight, bias, target, mean, ignore_index, chunk, needs))
    given = [None if t is None else t.detach().contiguous() for t in (rows, weight, bias)]
    wanted = [
        None if t is None or not need else torch.empty_like(t) for t, need in zip(given, needs)
    ]
    target = target.contiguous()
    (count, inputs), classes, dtype = rows.shape, weight.shape[0], rows.dtype
    shapes = (count, inputs), (classes, inputs), (classes,)
    arguments = CrossEntropyCall(
        *(count, inputs, classes, native.thread_count(), min(chunk, count), ignore_index, mean),
        *(address(t, dtype, *shape) for t, shape in zip(given, shapes)),
        address(target, torch.int64, count),
        *(address(t, dtype, *shape) for t, shape in zip(wanted, shapes)),
    )
    try:
        native.call("cross_entropy", arguments, dtype)
    except native.NoSuchClassError:
        wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))][0]
        raise IndexError(f"Target {int(wrong)} is out of bounds.") from None  # in torch's words
    return CrossEntropy(rows.new_tensor(arguments.loss), *wanted)


def by_torch(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    mean: bool,
    ignore_index: int,
    chunk: int,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The loss and its gradients."""
    given = [None if t is None else t.detach() for t in (rows, weight, bias)]
    gradients = [
        None if t is None or not need else torch.zeros_like(t) for t, need in zip(given, needs)
    ]
    counted = (target != ignore_index).sum()
    total = rows.new_zeros(())
    for first in range(0, rows.shape[0], chunk):
        part = slice(first, first + chunk)
        own = [
            None if t is None else t.requires_grad_(need)
            for t, need in zip((rows.detach()[part], *given[1:]), needs)
        ]
        with torch.enable_grad():
            logits = F.linear(own[0], own[1], own[2])  # type: ignore[arg-type]
            loss = F.cross_entropy(logits, target[part], reduction="sum", ignore_index=ignore_index)
            loss = loss / counted if mean else loss
        total = total + loss.detach()
        asked = [t for t in own if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(loss, asked) if asked else ())
        for i, t in enumerate(own):
            if t is not None and t.requires_grad:
                gradient = next(found)
                if i == 0:
                    gradients[0][part] = gradient  # type: ignore[index]
                else:
                    gradients[i] += gradient  # type: ignore[operator]
    return total, *gradients  # type: ignore[return-value]

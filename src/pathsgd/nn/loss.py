"""Cross-entropy of a linear layer whose logits are never all in memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.kernels.cross_entropy import can_compute_cross_entropy, cross_entropy
from pathsgd.nn.functional import PLAIN_TENSORS, is_plain_arithmetic
from pathsgd.nn.layer import is_batch_of_gradients

CHUNK = 320
"""Rows of logits held at a time: with 10,000 classes, 128 to 640 rows differ by little more than
noise."""


def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
    chunk: int = CHUNK,
) -> Tensor:
    """F.cross_entropy(F.linear(input, weight, bias), target), `chunk` rows at a time.

    input: (..., I); weight: (C, I); bias: (C) or None; target: (...) class numbers; the result is a
    scalar, or (...) with reduction="none". Gradients are computed with the logits at hand, so the
    backward pass costs nothing; it can be called more than once.

    On the CPU a kernel computes sums and means and skips the zeros of `input`, of which a ReLU
    makes many. Where it cannot, as with `pathsgd.nn.RNN`, torch.nn.functional.linear_cross_entropy
    does (torch 2.13 and later), chunked too but not to be differentiated twice. Under torch.func
    and in earlier versions of torch the logits are materialised.
    """
    if input.shape[:-1] != target.shape:
        raise ValueError(
            f"target {tuple(target.shape)} must have one class for each row of input "
            f"{tuple(input.shape)}"
        )
    if chunk < 1:
        raise ValueError(f"chunk must be at least one row, not {chunk}")
    rows, classes = input.reshape(-1, input.shape[-1]), target.reshape(-1)
    if _can_fuse(rows, weight, bias, classes, reduction):
        wanted = tuple(
            torch.is_grad_enabled() and t is not None and t.requires_grad
            for t in (rows, weight, bias)
        )
        return LinearCrossEntropy.apply(
            rows, weight, bias, classes, reduction == "mean", ignore_index, chunk, wanted
        )
    loss = _torch_loss(rows, weight, bias, classes, reduction, ignore_index, chunk)
    return loss.view(target.shape) if reduction == "none" else loss


class LinearCrossEntropy(torch.autograd.Function):
    """(rows, weight, bias, target, mean, ignore_index, chunk, wanted) -> loss.

    The gradients are computed with the loss, from the same logits.

    wanted: whether rows, weight and bias need theirs. They are given away at the first backward
    pass, so that nobody has to copy them; a later one computes them anew.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *settings: Any
    ) -> Tensor:
        loss, *ctx.gradients = cross_entropy(rows, weight, bias, target, *settings)
        ctx.save_for_backward(rows, weight, bias, target)
        ctx.settings = settings
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Any:  # type: ignore[override]
        others = (None,) * (1 + len(ctx.settings))
        if torch.is_grad_enabled():
            return *_backward_whole(ctx, d_loss), *others
        saved = ctx.saved_tensors  # torch has something to say if they were changed or freed
        gradients = ctx.gradients or cross_entropy(*saved, *ctx.settings)[1:]
        ctx.gradients = None
        if is_batch_of_gradients(d_loss):
            gradients = [None if gradient is None else gradient * d_loss for gradient in gradients]
        elif d_loss.item() != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        return *gradients, *others


def _backward_whole(ctx: Any, d_loss: Tensor) -> list[Tensor | None]:
    """The gradients by way of whole logits, so that they can be differentiated in turn."""
    *tensors, target = ctx.saved_tensors
    mean, ignore_index, _, wanted = ctx.settings
    # Views, so that a tensor in two places gets each place's gradient by itself.
    tensors = [t.view_as(t) if want else t for t, want in zip(tensors, wanted)]
    loss = F.cross_entropy(
        F.linear(*tensors), target, reduction="mean" if mean else "sum", ignore_index=ignore_index
    )
    needed = [t for t, want in zip(tensors, wanted) if want]
    gradients = iter(torch.autograd.grad(loss, needed, d_loss, create_graph=True))
    return [next(gradients) if want else None for want in wanted]


def _can_fuse(rows: Tensor, weight: Any, bias: Any, target: Tensor, reduction: str) -> bool:
    """Whether the kernel may take these.

    With reduction="none" each row brings a factor that is not known before.
    """
    if reduction not in ("mean", "sum") or rows.numel() == 0:
        return False
    tensors = (rows, weight) if bias is None else (rows, weight, bias)
    return (
        is_plain_arithmetic(tensors)
        and type(target) in PLAIN_TENSORS
        and target.is_cpu
        and target.dtype == torch.int64
        and weight.dim() == 2
        and weight.shape[0] > 0
        and weight.shape[1] == rows.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
        and can_compute_cross_entropy(weight.shape[0])
    )


def _torch_loss(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    reduction: str,
    ignore_index: int,
    chunk: int,
) -> Tensor:
    # The chunked loop cannot be differentiated by torch.func.
    if not hasattr(F, "linear_cross_entropy") or torch._C._are_functorch_transforms_active():
        return F.cross_entropy(
            F.linear(rows, weight, bias), target, reduction=reduction, ignore_index=ignore_index
        )
    return F.linear_cross_entropy(
        rows,
        weight,
        target,
        linear_bias=bias,
        reduction=reduction,
        ignore_index=ignore_index,
        options=torch.nn.LinearCrossEntropyOptions(
            batch_chunk_size=min(chunk, max(1, len(rows))),
            chunking_method=None,
            allow_retain_graph=True,
        ),
    )

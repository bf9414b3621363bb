"""Cross-entropy of a linear layer by way of autograd, a chunk of rows at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
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

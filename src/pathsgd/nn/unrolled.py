"""The layer of layer.py written out step by step in torch's elementary operations.

Slow, but it can be differentiated any number of times and run under every transform, so derivatives
of derivatives and batches of gradients come from here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.kernels.layout import Layout, walk


def unrolled_layer(
    x: Tensor, h0: Tensor | None, layout: Layout, directions: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, Tensor]:
    """States and last states as ReluLayer returns them.

    `directions` holds each direction's own weights.
    """
    both = [
        _one_direction(x, None if h0 is None else h0[d], layout, d, own)
        for d, own in enumerate(directions)
    ]
    states = torch.cat([states for states, _ in both], dim=-1)
    return states.view(*x.shape[:-1], -1), torch.stack([last for _, last in both])


def _one_direction(
    x: Tensor, start: Tensor | None, layout: Layout, direction: int, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """h_t = relu(W_in x_t + b_in + W_rec h_before(t) + b_rec), all rows (rows, H), last (B, H)."""
    w_in, w_rec, *biases = weights
    if start is None:
        start = x.new_zeros(layout.batch, w_rec.shape[0])
    projected = F.linear(
        x.reshape(-1, x.shape[-1]), w_in, biases[0] + biases[1] if biases else None
    )
    inputs = projected.split(layout.sizes())
    states: list[Tensor] = [start] * layout.steps
    ended: list[Tensor] = []
    for step in walk(layout, direction == 1):
        before = start[step.continued : step.rows]
        if step.continued:
            before = torch.cat([states[step.before][: step.continued], before])
        states[step.now] = torch.relu(inputs[step.now] + F.linear(before, w_rec))
        ended.append(states[step.now][step.continuing :])
    return torch.cat(states), torch.cat(
        ended[::-1]
    )  # the longest sequences come first and end last

"""dW_rec = sum_t dz_t^T h_before(t), as one product of all steps."""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.kernels.layout import Layout, columns, walk


def recurrent_gradient(
    dz: Tensor, states: Tensor, h0: Tensor | None, layout: Layout, direction: int
) -> Tensor:
    """(H, H)."""
    out, start = columns(states, direction, dz.shape[1]), None if h0 is None else h0[direction]
    if layout.starts is None:
        if direction == 1:
            continued, starting, before = (
                dz[: -layout.batch],
                dz[-layout.batch :],
                out[layout.batch :],
            )
        else:
            continued, starting, before = (
                dz[layout.batch :],
                dz[: layout.batch],
                out[: -layout.batch],
            )
        gradient = continued.t() @ before
        return gradient if start is None else gradient.addmm_(starting.t(), start)
    before, sizes = torch.zeros_like(dz), layout.sizes()
    activations, rows = out.split(sizes), before.split(sizes)
    for step in walk(layout, direction == 1):
        if step.continued:
            rows[step.now][: step.continued] = activations[step.before][: step.continued]
        if start is not None:
            rows[step.now][step.continued :] = start[step.continued : step.rows]
    return dz.t() @ before

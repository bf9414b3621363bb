"""h_t = relu(W_in x_t + bias + W_rec h_before), step by step, with in-place operations on whole steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathsgd.kernels.layout import Layout, columns, first_rows, walk


def rnn_forward(
    x: Tensor,
    h0: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    direction: int,
    states: Tensor,
    last: Tensor,
) -> None:
    """Fill one direction's part of `states` and `last`."""
    w_in, w_rec, *biases = weights
    out, h_n = columns(states, direction, w_rec.shape[0]), last[direction]
    start = None if h0 is None else h0[direction]
    project_inputs(x, w_in, biases, out)
    rows, w_rec_t = out.split(layout.sizes()), w_rec.t()
    for step in walk(layout, direction == 1):
        now = rows[step.now]
        if step.continued:
            first_rows(now, step.continued).addmm_(
                first_rows(rows[step.before], step.continued), w_rec_t
            )
        if start is not None and step.continued < step.rows:
            now[step.continued :].addmm_(start[step.continued : step.rows], w_rec_t)
        now.relu_()
        if step.continuing < step.rows:
            h_n[step.continuing : step.rows] = now[step.continuing :]


def project_inputs(x: Tensor, w_in: Tensor, biases: Sequence[Tensor], out: Tensor) -> None:
    """out = x W_in^T + b_in + b_rec, one product for all steps."""
    x = x.view(-1, x.shape[-1])
    if biases:
        torch.addmm(biases[0] + biases[1], x, w_in.t(), out=out)
    else:
        torch.mm(x, w_in.t(), out=out)

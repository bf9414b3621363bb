"""The fused operations in torch alone: the same signatures as the kernel's, results within float rounding.

    h_t = relu(W_in x_t + bias + W_rec h_before)          dz_t = [h_t > 0] * (dout_t + dz_after W_rec)

Backpropagation by hand, with in-place operations and one product per weight, spares the graph of torch.nn.RNN, which
has a dozen nodes per step. Arguments and order of rows: see layout.py and calls.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathsgd._native.layout import Layout, columns, walk


def forward(
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
            _head(now, step.continued).addmm_(_head(rows[step.before], step.continued), w_rec_t)
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


def backward_states(
    d_states: Tensor | None,
    d_last: Tensor | None,
    states: Tensor,
    w_rec: Tensor,
    layout: Layout,
    direction: int,
    dh0: Tensor | None,
) -> Tensor:
    """Gradient dz of the values inside relu, (all rows, H); fills `dh0` (B, H) when it is given."""
    hidden, sizes = w_rec.shape[0], layout.sizes()
    out = columns(states, direction, hidden)
    if d_states is None:
        dz = out.new_empty(out.shape)
    else:
        dz = columns(d_states, direction, hidden).clone(memory_format=torch.contiguous_format)
    dh_n = None if d_last is None else d_last[direction]
    activations, gradients = out.split(sizes), dz.split(sizes)
    mask = torch.ops.aten.threshold_backward.grad_input
    for step in reversed(list(walk(layout, direction == 1))):
        now = gradients[step.now]
        if step.continuing:
            to, after = _head(now, step.continuing), _head(gradients[step.after], step.continuing)
            torch.mm(after, w_rec, out=to) if d_states is None else to.addmm_(after, w_rec)
        if step.continuing < step.rows:
            ending = now[step.continuing :]
            if d_states is None:
                ending.zero_()
            if dh_n is not None:
                ending += dh_n[step.continuing : step.rows]
        mask(now, activations[step.now], 0, grad_input=now)
        if dh0 is not None and step.continued < step.rows:
            torch.mm(now[step.continued :], w_rec, out=dh0[step.continued : step.rows])
    return dz


def recurrent_weight_gradient(dz: Tensor, states: Tensor, h0: Tensor | None, layout: Layout, direction: int) -> Tensor:
    """dW_rec = sum_t dz_t^T h_before(t), (H, H), as one product."""
    out, start = columns(states, direction, dz.shape[1]), None if h0 is None else h0[direction]
    if layout.starts is None:
        if direction == 1:
            continued, starting, before = dz[: -layout.batch], dz[-layout.batch :], out[layout.batch :]
        else:
            continued, starting, before = dz[layout.batch :], dz[: layout.batch], out[: -layout.batch]
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


def _head(tensor: Tensor, rows: int) -> Tensor:
    return tensor if tensor.shape[0] == rows else tensor[:rows]

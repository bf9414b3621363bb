"""dz_t = [h_t > 0] * (dout_t + dz_after W_rec), step by step.

Backpropagation by hand, with in-place operations and one product per weight, spares the graph of torch.nn.RNN, which
has a dozen nodes per step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.kernels.layout import Layout, columns, first_rows, walk


def rnn_backward(
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
            to, after = (
                first_rows(now, step.continuing),
                first_rows(gradients[step.after], step.continuing),
            )
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

"""The fused operations in torch alone: the same signatures as the kernel's, results within float rounding.

    h_t = relu(W_in x_t + bias + W_rec h_before)          dz_t = [h_t > 0] * (dout_t + dz_after W_rec)

Backpropagation by hand with in-place operations and one product per weight takes about half the time of
torch.nn.RNN, whose graph has a dozen nodes per step. Arguments and row order: see layout.py and calls.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd._native.layout import Layout, walk


def forward(
    x: Tensor,
    h0: Tensor | None,
    w_in: Tensor,
    w_rec: Tensor,
    bias: Tensor | None,
    layout: Layout,
    reverse: bool,
    out: Tensor,
    h_n: Tensor,
) -> None:
    """Fill `out` (all rows, H) and `h_n` (B, H)."""
    project_inputs(x, w_in, bias, out)
    w_rec_t = w_rec.t()
    for step in walk(layout, reverse):
        states = out[step.first : step.end]
        if step.continued:
            states[: step.continued].addmm_(out[step.before : step.before + step.continued], w_rec_t)
        if h0 is not None and step.continued < len(states):
            states[step.continued :].addmm_(h0[step.continued : len(states)], w_rec_t)
        states.relu_()
        h_n[step.continuing : len(states)] = states[step.continuing :]


def project_inputs(x: Tensor, w_in: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x W_in^T + bias, one product for all steps."""
    if bias is None:
        torch.mm(x, w_in.t(), out=out)
    else:
        torch.addmm(bias, x, w_in.t(), out=out)


def backward_states(
    dout: Tensor | None,
    dh_n: Tensor | None,
    out: Tensor,
    w_rec: Tensor,
    layout: Layout,
    reverse: bool,
    dh0: Tensor | None,
) -> Tensor:
    """Gradient of the values inside relu, (all rows, H); fills `dh0` (B, H) when it is given."""
    dz = torch.empty(out.shape, dtype=out.dtype) if dout is None else dout.clone(memory_format=torch.contiguous_format)
    for step in reversed(list(walk(layout, reverse))):
        now, rows = dz[step.first : step.end], step.end - step.first
        if step.continuing:
            after = dz[step.after : step.after + step.continuing]
            if dout is None:
                torch.mm(after, w_rec, out=now[: step.continuing])
            else:
                now[: step.continuing].addmm_(after, w_rec)
        if step.continuing < rows:
            ending = now[step.continuing :]
            if dout is None:
                ending.zero_()
            if dh_n is not None:
                ending += dh_n[step.continuing : rows]
        torch.ops.aten.threshold_backward.grad_input(now, out[step.first : step.end], 0, grad_input=now)
        if dh0 is not None and step.continued < rows:
            torch.mm(now[step.continued :], w_rec, out=dh0[step.continued : rows])
    return dz


def recurrent_weight_gradient(dz: Tensor, out: Tensor, h0: Tensor | None, layout: Layout, reverse: bool) -> Tensor:
    """dW_rec = sum_t dz_t^T h_before(t), (H, H), as one product."""
    if layout.starts is None:
        now, before = (dz[: -layout.batch], out[layout.batch :]) if reverse else (dz[layout.batch :], out[: -layout.batch])
        gradient = now.t() @ before
        if h0 is not None:
            gradient.addmm_((dz[-layout.batch :] if reverse else dz[: layout.batch]).t(), h0)
        return gradient
    states_before = torch.zeros_like(dz)
    for step in walk(layout, reverse):
        rows = states_before[step.first : step.end]
        rows[: step.continued] = out[step.before : step.before + step.continued]
        if h0 is not None:
            rows[step.continued :] = h0[step.continued : len(rows)]
    return dz.t() @ states_before

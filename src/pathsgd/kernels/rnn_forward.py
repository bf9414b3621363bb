"""One direction of one ReLU layer, forward.

T steps, B sequences, I inputs, H units, D = 1 or 2 directions; rnn.h has the recurrence. All
tensors are contiguous:
    x (T, B, I)   w_in (H, I)   w_rec (H, H)   b_in, b_rec (H)   states (T, B, D*H)
    h0, last (D, B, H)
For sequences packed into R rows, (R, ...) replaces (T, B, ...). One call computes one direction and
writes only its columns of `states` and its part of `h0` and `last`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.layout import Layout, Shape, columns, first_rows, walk
from pathsgd.kernels.native import INT, POINTER, address, fields

SMALL_INPUTS = 16
"""Up to this many inputs, W_in x is computed in the sweep over time; beyond, one product does it
better."""


class RnnForwardCall(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        *fields(POINTER, "x w_in b_in b_rec w_rec h0 out"),
        ("out_stride", INT),
        ("h_n", POINTER),
    ]


def rnn_forward(
    x: Tensor,
    h0: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    direction: int,
    states: Tensor,
    last: Tensor,
) -> None:
    """Fill `states` with h_t and `last` with the states at the end.

        h_t = relu(W_in x_t + b_in + W_rec h_before(t) + b_rec)

    weights: w_in, w_rec and, if biased, b_in and b_rec; direction: 0 forwards, 1 backwards in time.
    """
    if x.dtype not in native.C_TYPES or not native.accepts(x, h0, *weights, states, last):
        return by_torch(x, h0, weights, layout, direction, states, last)
    w_in, w_rec, *biases = weights
    (hidden, inputs), batch, dtype = w_in.shape, layout.batch, x.dtype
    directions, rows = last.shape[0], layout.rows()
    fused_inputs = inputs <= SMALL_INPUTS
    if not fused_inputs:
        project_inputs(x, w_in, biases, columns(states, direction, hidden))
    b_in, b_rec = biases if biases else (None, None)
    arguments = RnnForwardCall(
        layout.shape(hidden, inputs, direction),
        address(x, dtype, *rows, inputs) if fused_inputs else None,
        address(w_in, dtype, hidden, inputs),
        address(b_in, dtype, hidden),
        address(b_rec, dtype, hidden),
        address(w_rec, dtype, hidden, hidden),
        address(h0, dtype, directions, batch, hidden, offset=direction * batch * hidden),
        address(states, dtype, *rows, directions * hidden, offset=direction * hidden),
        directions * hidden,
        address(last, dtype, directions, batch, hidden, offset=direction * batch * hidden),
    )
    native.call("rnn_forward", arguments, dtype)


def by_torch(
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

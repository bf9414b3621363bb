"""One direction of one ReLU layer, backward.

Gradients of what rnn_forward.py computes, whose shapes these are.

By torch: dz_t = [h_t > 0] * (dout_t + dz_after W_rec), step by step.

Backpropagation by hand, with in-place operations and one product per weight, spares the graph of
torch.nn.RNN, which has a dozen nodes per step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.layout import Layout, Shape, columns, first_rows, walk
from pathsgd.kernels.native import INT, POINTER, address, fields
from pathsgd.kernels.recurrent_gradient import recurrent_gradient

SMALL_INPUTS = 16
"""Up to this many inputs, dW_in is summed in the sweep over time; beyond, one product does it
better."""
SMALL_HIDDEN = 256
"""Up to this many units, dW_rec is summed in the sweep over time; beyond, a pass of its own does
it better."""


class RnnBackwardCall(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        *fields(POINTER, "x w_rec h0 out"),
        ("out_stride", INT),
        ("dout", POINTER),
        ("dout_stride", INT),
        *fields(POINTER, "dh_n dz dh0 dw_rec dw_in dbias"),
    ]


class Needs(NamedTuple):
    """Which gradients are wanted."""

    x: bool
    h0: bool
    w_in: bool
    w_rec: bool
    bias: bool


class Gradients(NamedTuple):
    """Gradients of one direction; None where none was wanted."""

    x: Tensor | None
    h0: Tensor | None
    w_in: Tensor | None
    w_rec: Tensor | None
    bias: Tensor | None


def rnn_backward(
    d_states: Tensor | None,
    d_last: Tensor | None,
    x: Tensor,
    h0: Tensor | None,
    states: Tensor,
    weights: Sequence[Tensor],
    layout: Layout,
    direction: int,
    needs: Needs,
) -> Gradients:
    """Gradients from those of `states` and `last`, either of which may be None for zeros."""
    w_in, w_rec = weights[:2]
    dh0 = x.new_empty(layout.batch, w_rec.shape[0]) if needs.h0 else None
    if x.dtype not in native.C_TYPES or not native.accepts(
        d_states, d_last, x, h0, states, *weights
    ):
        dz: Tensor | None = by_torch(d_states, d_last, states, w_rec, layout, direction, dh0)
        swept = Gradients(None, dh0, None, None, None)
    else:
        dz, swept = _sweep(d_states, d_last, x, h0, states, weights, layout, direction, needs, dh0)
    if dz is None:
        return swept
    _, _, dw_in, dw_rec, dbias = swept
    if needs.bias and dbias is None:
        dbias = dz.sum(0)
    if needs.w_rec and dw_rec is None:
        dw_rec = recurrent_gradient(dz, states, h0, layout, direction)
    if needs.w_in and dw_in is None:
        dw_in = dz.t() @ x.view(-1, x.shape[-1])
    return Gradients((dz @ w_in).view(x.shape) if needs.x else None, dh0, dw_in, dw_rec, dbias)


def _sweep(
    d_states: Tensor | None,
    d_last: Tensor | None,
    x: Tensor,
    h0: Tensor | None,
    states: Tensor,
    weights: Sequence[Tensor],
    layout: Layout,
    direction: int,
    needs: Needs,
    dh0: Tensor | None,
) -> tuple[Tensor | None, Gradients]:
    """The kernel's sweep; dz is None unless a product after the sweep needs it."""
    (hidden, inputs), batch, dtype = weights[0].shape, layout.batch, x.dtype
    rows, width = layout.rows(), states.shape[-1]
    sums_rec = needs.w_rec and hidden <= SMALL_HIDDEN
    sums_in = needs.w_in and inputs <= SMALL_INPUTS
    keeps_dz = needs.x or (needs.w_in and not sums_in) or (needs.w_rec and not sums_rec)
    dz = x.new_empty(states.shape[:-1].numel(), hidden) if keeps_dz else None
    dw_rec = x.new_empty(hidden, hidden) if sums_rec else None
    dw_in = x.new_empty(hidden, inputs) if sums_in else None
    dbias = x.new_empty(hidden)
    own = direction * batch * hidden
    arguments = RnnBackwardCall(
        layout.shape(hidden, inputs, direction),
        address(x, dtype, *rows, inputs),
        address(weights[1], dtype, hidden, hidden),
        address(h0, dtype, width // hidden, batch, hidden, offset=own),
        address(states, dtype, *rows, width, offset=direction * hidden),
        width,
        address(d_states, dtype, *rows, width, offset=direction * hidden),
        width,
        address(d_last, dtype, width // hidden, batch, hidden, offset=own),
        address(dz, dtype, states.shape[:-1].numel(), hidden),
        address(dh0, dtype, batch, hidden),
        address(dw_rec, dtype, hidden, hidden),
        address(dw_in, dtype, hidden, inputs),
        address(dbias, dtype, hidden),
    )
    native.call("rnn_backward", arguments, dtype)
    return dz, Gradients(None, dh0, dw_in, dw_rec, dbias if needs.bias else None)


def by_torch(
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

"""The gradient of a layer's recurrent weights, from those of the values inside relu, dz."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.layout import Layout, Shape, columns, walk
from pathsgd.kernels.native import INT, POINTER, address, fields


class RecurrentGradientCall(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        *fields(POINTER, "dz h0 out"),
        ("out_stride", INT),
        ("dw_rec", POINTER),
    ]


def recurrent_gradient(
    dz: Tensor, states: Tensor, h0: Tensor | None, layout: Layout, direction: int
) -> Tensor:
    """dW_rec = sum_t dz_t^T h_before(t), (H, H).

    dz: (all rows, H); states (T, B, D*H) or (R, D*H), h0 (D, B, H) or None: as in rnn_forward.py.
    """
    if dz.dtype not in native.C_TYPES or not native.accepts(dz, states, h0):
        return by_torch(dz, states, h0, layout, direction)
    (rows, hidden), width, batch, dtype = dz.shape, states.shape[-1], layout.batch, dz.dtype
    dw_rec = dz.new_empty(hidden, hidden)
    arguments = RecurrentGradientCall(
        layout.shape(hidden, 0, direction),
        address(dz, dtype, rows, hidden),
        address(h0, dtype, width // hidden, batch, hidden, offset=direction * batch * hidden),
        address(states, dtype, *layout.rows(), width, offset=direction * hidden),
        width,
        address(dw_rec, dtype, hidden, hidden),
    )
    native.call("recurrent_gradient", arguments, dtype)
    return dw_rec


def by_torch(
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

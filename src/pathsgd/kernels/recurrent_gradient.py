"""The gradient of a layer's recurrent weights, from the gradients dz of the values inside relu at every step."""

from __future__ import annotations

import ctypes

from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.fallback import recurrent_gradient as fallback
from pathsgd.kernels.layout import Layout, Shape
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
        return fallback.recurrent_gradient(dz, states, h0, layout, direction)
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

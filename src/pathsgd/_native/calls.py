"""One direction of one ReLU layer, forward and backward, by whatever is there.

Shapes (rnn.h has the recurrence): T steps, B sequences, I inputs, H units, D = 1 or 2 directions; all are contiguous
    x (T, B, I)   w_in (H, I)   w_rec (H, H)   b_in, b_rec (H)   states (T, B, D*H)   h0, last (D, B, H)
and (R, ...) for (T, B, ...) where sequences are packed into R rows. A call computes one direction and touches only its
columns of `states` and its part of `h0` and `last`. The structures below mirror those of rnn.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathsgd._native import fallback
from pathsgd._native.layout import Layout, columns
from pathsgd._native.loader import load, thread_count

SMALL_INPUTS = 16
"""Up to this many inputs, W_in x and dW_in are part of the sweep; beyond, one product does them better."""
SMALL_HIDDEN = 256
"""Up to this many units, dW_rec is summed in the backward sweep; beyond, a pass of its own does it better."""

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
C_TYPES = {torch.float32: "float", torch.float64: "double"}


class _Shape(ctypes.Structure):
    _fields_ = [
        ("steps", _INT),
        ("batch", _INT),
        ("hidden", _INT),
        ("inputs", _INT),
        ("reversed", _INT),
        ("threads", _INT),
        ("row_starts", _POINTER),
    ]


class _ForwardCall(ctypes.Structure):
    _fields_ = [
        ("shape", _Shape),
        ("x", _POINTER),
        ("w_in", _POINTER),
        ("b_in", _POINTER),
        ("b_rec", _POINTER),
        ("w_rec", _POINTER),
        ("h0", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT),
        ("h_n", _POINTER),
    ]


class _BackwardCall(ctypes.Structure):
    _fields_ = [
        ("shape", _Shape),
        ("x", _POINTER),
        ("w_rec", _POINTER),
        ("h0", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT),
        ("dout", _POINTER),
        ("dout_stride", _INT),
        ("dh_n", _POINTER),
        ("dz", _POINTER),
        ("dh0", _POINTER),
        ("dw_rec", _POINTER),
        ("dw_in", _POINTER),
        ("dbias", _POINTER),
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


def forward(
    x: Tensor,
    h0: Tensor | None,
    weights: Sequence[Tensor],
    layout: Layout,
    direction: int,
    states: Tensor,
    last: Tensor,
) -> None:
    """Fill `states` with h_t = relu(W_in x_t + b_in + W_rec h_before(t) + b_rec) and `last` with the states at the end.

    weights: w_in, w_rec and, if biased, b_in and b_rec; direction: 0 forwards, 1 backwards in time.
    """
    library = load().library
    if library is None:
        return fallback.forward(x, h0, weights, layout, direction, states, last)
    w_in, w_rec, *biases = weights
    hidden, inputs = w_in.shape
    fused_inputs = inputs <= SMALL_INPUTS
    if not fused_inputs:
        fallback.project_inputs(x, w_in, biases, columns(states, direction, hidden))
    b_in, b_rec = biases if biases else (None, None)
    call = _ForwardCall(
        _shape(layout, hidden, inputs, direction),
        pointer(x) if fused_inputs else None,
        pointer(w_in),
        pointer(b_in),
        pointer(b_rec),
        pointer(w_rec),
        pointer(h0, direction * layout.batch * hidden),
        pointer(states, direction * hidden),
        states.shape[-1],
        pointer(last, direction * layout.batch * hidden),
    )
    call_kernel(library, "pathsgd_forward_" + C_TYPES[x.dtype], call)
    return None


def backward(
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
    library = load().library
    if library is None:
        dz: Tensor | None = fallback.backward_states(d_states, d_last, states, w_rec, layout, direction, dh0)
        swept = Gradients(None, dh0, None, None, None)
    else:
        dz, swept = _sweep_back(library, d_states, d_last, x, h0, states, weights, layout, direction, needs, dh0)
    if dz is None:
        return swept
    _, _, dw_in, dw_rec, dbias = swept
    if needs.bias and dbias is None:
        dbias = dz.sum(0)
    if needs.w_rec and dw_rec is None:
        dw_rec = fallback.recurrent_weight_gradient(dz, states, h0, layout, direction)
    if needs.w_in and dw_in is None:
        dw_in = dz.t() @ x.view(-1, x.shape[-1])
    return Gradients((dz @ w_in).view(x.shape) if needs.x else None, dh0, dw_in, dw_rec, dbias)


def _sweep_back(
    library: Any,
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
    """The kernel's sweep. dz is kept only when a product after the sweep needs it, and None otherwise."""
    hidden, inputs = weights[0].shape
    sums_rec = needs.w_rec and hidden <= SMALL_HIDDEN
    sums_in = needs.w_in and inputs <= SMALL_INPUTS
    keeps_dz = needs.x or (needs.w_in and not sums_in) or (needs.w_rec and not sums_rec)
    dz = x.new_empty(states.shape[:-1].numel(), hidden) if keeps_dz else None
    dw_rec = x.new_empty(hidden, hidden) if needs.w_rec else None
    dw_in = x.new_empty(hidden, inputs) if sums_in else None
    dbias = x.new_empty(hidden)
    call = _BackwardCall(
        _shape(layout, hidden, inputs, direction),
        pointer(x),
        pointer(weights[1]),
        pointer(h0, direction * layout.batch * hidden),
        pointer(states, direction * hidden),
        states.shape[-1],
        pointer(d_states, direction * hidden),
        states.shape[-1],
        pointer(d_last, direction * layout.batch * hidden),
        pointer(dz),
        pointer(dh0),
        pointer(dw_rec) if sums_rec else None,
        pointer(dw_in),
        pointer(dbias),
    )
    call_kernel(library, "pathsgd_backward_" + C_TYPES[x.dtype], call)
    if needs.w_rec and not sums_rec:
        call.dw_rec = pointer(dw_rec)
        call_kernel(library, "pathsgd_recurrent_gradient_" + C_TYPES[x.dtype], call)
    return dz, Gradients(None, dh0, dw_in, dw_rec, dbias if needs.bias else None)


def _shape(layout: Layout, hidden: int, inputs: int, direction: int) -> _Shape:
    return _Shape(layout.steps, layout.batch, hidden, inputs, direction, thread_count(), pointer(layout.starts))


def pointer(tensor: Tensor | None, offset: int = 0) -> int | None:
    """Address of the element at `offset` in a contiguous tensor."""
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError(f"the kernel was given a tensor of shape {tuple(tensor.shape)} that is not contiguous")
    return tensor.data_ptr() + offset * tensor.itemsize if offset else tensor.data_ptr()


def call_kernel(library: Any, name: str, arguments: ctypes.Structure) -> None:
    if getattr(library, name)(ctypes.byref(arguments)) != 0:
        raise MemoryError(f"{name} could not allocate its working memory")

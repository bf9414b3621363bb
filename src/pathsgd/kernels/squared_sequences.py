"""States and derivatives of the squared network of one recurrent layer."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.fallback import squared_sequences as fallback
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

KINDS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float64),
)
"""Types of the weights and of the computation; the latter must hold the former."""


class SquaredSequencesCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "steps hidden every_step threads"),
        *fields(POINTER, "w_rec u v h delta"),
        ("decay", REAL),
    ]


def squared_sequences(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, every_step: bool, decay: float = 1.0
) -> tuple[Tensor, Tensor]:
    """h and delta of the squared recurrence, scaled.

        h_1 = u,  h_{s+1} = A h_s + u        delta_T = v,  delta_s = A^T delta_{s+1} (+ v if every_step)

    A = weight ** 2, weight (H, H), T = steps. Row s-1 of the results, each (T, H) and of the type of u, holds
    h_s decay^(s-1) and delta_s decay^(T-s): with 1/decay near the Perron root of A neither overflows.
    """
    hidden, dtype = weight.shape[0], u.dtype
    if (
        weight.shape != (hidden, hidden)
        or u.shape != (hidden,)
        or v.shape != (hidden,)
        or v.dtype != dtype
    ):
        raise ValueError(
            f"weight {tuple(weight.shape)} must be square, u {tuple(u.shape)} {u.dtype} and "
            f"v {tuple(v.shape)} {v.dtype} vectors of its size and of one type"
        )
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    weight, u, v = weight.detach(), u.detach(), v.detach()
    if (weight.dtype, dtype) not in KINDS or not native.accepts(weight, u, v):
        return fallback.squared_sequences(weight, u, v, steps, every_step, decay)
    weight, u, v = weight.contiguous(), u.contiguous(), v.contiguous()
    h, delta = u.new_empty(steps, hidden), u.new_empty(steps, hidden)
    arguments = SquaredSequencesCall(
        *(steps, hidden, every_step, native.thread_count()),
        address(weight, weight.dtype, hidden, hidden),
        *(address(t, dtype, hidden) for t in (u, v)),
        *(address(t, dtype, steps, hidden) for t in (h, delta)),
        decay,
    )
    native.call("squared_sequences", arguments, weight.dtype, dtype)
    return h, delta

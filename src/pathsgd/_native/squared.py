"""The squared network of one recurrent layer: its sequences and products, by the kernel.

The structures mirror those of squared.h. `pathsgd.doubling` and torch do the same where there is no kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd._native import calls
from pathsgd._native.calls import C_TYPES, call_kernel, pointer
from pathsgd._native.loader import thread_count

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_TOO_NARROW = (torch.float64, torch.float32)  # weights that the type of the computation cannot hold


class _SquaredCall(ctypes.Structure):
    _fields_ = [
        ("steps", _INT),
        ("hidden", _INT),
        ("every_step", _INT),
        ("threads", _INT),
        ("w_rec", _POINTER),
        ("u", _POINTER),
        ("v", _POINTER),
        ("h", _POINTER),
        ("delta", _POINTER),
        ("inverse_rho", ctypes.c_double),
    ]


class _SquaredProductsCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("rows", "columns", "threads")),
        *((name, _POINTER) for name in ("w", "x", "y", "into", "out")),
    ]


def squared_sequences(
    weight_hh: Tensor, u: Tensor, v: Tensor, steps: int, every_step: bool, inv_rho: float = 1.0
) -> tuple[Tensor, Tensor] | None:
    """States and derivatives of the squared network of one recurrent layer, or None when no kernel can do it.

        h_1 = u,  h_{s+1} = A h_s + u        delta_T = v,  delta_s = A^T delta_{s+1} (+ v if every_step)

    A = weight_hh ** 2, T = steps. Row s-1 of the results, each (T, H) and of the type of u, holds h_s rho^-(s-1) and
    delta_s rho^-(T-s) with rho = 1 / inv_rho: choose rho near the Perron root of A and neither overflows.
    """
    library = calls.load().library
    kinds = (weight_hh.dtype, u.dtype)
    if (
        library is None
        or any(t.device.type != "cpu" for t in (weight_hh, u, v))
        or any(kind not in C_TYPES for kind in kinds)
        or kinds == _TOO_NARROW
    ):
        return None
    hidden = weight_hh.shape[0]
    if weight_hh.shape != (hidden, hidden) or u.shape != (hidden,) or v.shape != (hidden,) or v.dtype != u.dtype:
        raise ValueError(
            f"weight_hh {tuple(weight_hh.shape)} must be square, u {tuple(u.shape)} {u.dtype} and "
            f"v {tuple(v.shape)} {v.dtype} vectors of its size and of one type"
        )
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    weight_hh, u, v = (t.detach().contiguous() for t in (weight_hh, u, v))
    h, delta = u.new_empty(steps, hidden), u.new_empty(steps, hidden)
    call_kernel(
        library,
        f"pathsgd_squared_{C_TYPES[kinds[0]]}_{C_TYPES[kinds[1]]}",
        _SquaredCall(
            steps,
            hidden,
            every_step,
            thread_count(),
            pointer(weight_hh),
            pointer(u),
            pointer(v),
            pointer(h),
            pointer(delta),
            inv_rho,
        ),
    )
    return h, delta


class _SquaredSumsCall(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("steps", "hidden", "every_step", "threads")),
        *((name, _POINTER) for name in ("w_rec", "u", "v", "h", "delta")),
        ("inverse_rho", ctypes.c_double),
        *((name, _POINTER) for name in ("into", "out", "flow", "recurrent")),
        *((name, ctypes.c_double) for name in ("largest", "least")),
    ]


class _PlainSumsCall(ctypes.Structure):
    _fields_ = [
        ("sums", _SquaredSumsCall),
        *((name, _INT) for name in ("inputs", "outputs")),
        *((name, _POINTER) for name in ("w_in", "b_in", "b_rec", "w_out", "b_out", "e")),
        *((name, ctypes.c_double) for name in ("output_rows", "gamma_sq", "growth")),
    ]


class PlainSums(NamedTuple):
    """Sequences h, delta (T, H) of the squared network of a plain net, s = 0 .. T-1, and their sums over gamma^2.

    Everything is scaled by powers of rho as in `squared_sequences`, the sums and gamma^2 by rho^(T-1). Where gamma^2 is
    zero, so are the sums.
    """

    h: Tensor
    delta: Tensor
    vectors: Tensor
    """(3, H) float64: sum rho^-s delta_s, into the units; sum rho^-(T-1-s) h_s over steps with outputs, out of them;
    sum h_s .* delta_s, the flow through them"""
    recurrent: Tensor
    """sum delta_{s+1} h_s^T / rho, (H, H)"""
    gamma_sq: float
    growth: float
    """The sum of h in the last step over that in the step before; 0 if there is only one."""
    largest: float
    """Largest entry of h and delta; infinite where anything is not finite."""
    least: float
    """Least entry of the first two vectors and, for more than one step, recurrent, before they were divided."""


def plain_sums(
    w_in: Tensor,
    e: Tensor | None,
    w_rec: Tensor,
    biases: Sequence[Tensor],
    w_out: Tensor,
    b_out: Tensor | None,
    steps: int,
    every_step: bool,
    inv_rho: float,
    dtype: torch.dtype,
) -> PlainSums | None:
    """What kappa1 of a plain recurrent net is made of, computed in `dtype`; None where no kernel can do it.

    w_in (H, I), w_rec (H, H), w_out (O, H), biases two of (H,) or none, b_out (O,) or None; e: (I,) float64, what each
    input carries, None for ones.
    """
    library, kinds = calls.load().library, (w_rec.dtype, dtype)
    weights = [w_in, w_rec, *biases, w_out, *([] if b_out is None else [b_out])]
    if library is None or kinds == _TOO_NARROW or any(kind not in C_TYPES for kind in kinds):
        return None
    if not all(w.is_cpu and w.dtype == kinds[0] and w.is_contiguous() for w in weights):
        return None
    hidden, (b_in, b_rec) = w_rec.shape[0], biases or (None, None)
    h, delta = torch.empty(2, steps, hidden, dtype=dtype)
    vectors = torch.empty(3, hidden, dtype=torch.float64)
    recurrent = torch.empty(hidden, hidden, dtype=dtype)
    inputs = [pointer(w_rec), None, None, pointer(h), pointer(delta)]
    outputs = [*(pointer(vectors, i * hidden) for i in range(3)), pointer(recurrent)]
    sums = _SquaredSumsCall(steps, hidden, every_step, thread_count(), *inputs, inv_rho, *outputs)
    given = [pointer(t) for t in (w_in, b_in, b_rec, w_out, b_out, e)]
    output_rows = steps * inv_rho ** (steps - 1) if every_step else inv_rho ** (steps - 1)
    call = _PlainSumsCall(sums, w_in.shape[1], w_out.shape[0], *given, output_rows)
    call_kernel(library, f"pathsgd_plain_sums_{C_TYPES[kinds[0]]}_{C_TYPES[kinds[1]]}", call)
    return PlainSums(h, delta, vectors, recurrent, call.gamma_sq, call.growth, call.sums.largest, call.sums.least)


def squared_products(
    weight: Tensor, x: Tensor | None = None, y: Tensor | None = None, *, into: bool = True, out: bool = True
) -> tuple[Tensor | None, Tensor | None]:
    """W^2 x (n,) and (W^2)^T y (m,) in float64, W (n, m) squared elementwise; x, y: float64, None for ones."""
    library, weight = calls.load().library, weight.detach()
    if library is None or not weight.is_cpu or weight.dtype not in C_TYPES:
        squared = weight.to(torch.float64).square()
        by_x = None if not into else squared.sum(1) if x is None else squared @ x
        return by_x, None if not out else squared.sum(0) if y is None else y @ squared
    weight, rows, columns = weight.contiguous(), weight.shape[0], weight.shape[1]
    by_x = torch.empty(rows, dtype=torch.float64) if into else None
    by_y = torch.empty(columns, dtype=torch.float64) if out else None
    arguments = [pointer(t) for t in (weight, x, y, by_x, by_y)]
    call = _SquaredProductsCall(rows, columns, thread_count(), *arguments)
    call_kernel(library, "pathsgd_squared_products_" + C_TYPES[weight.dtype], call)
    return by_x, by_y

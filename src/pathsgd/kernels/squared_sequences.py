"""States and derivatives of the squared network of one recurrent layer.

By torch: The squared recurrence by doubling: a few matrix products instead of T small steps.

    h_{s+1} = A h_s + u,  h_1 = u,  so  h_{s+b} = A^b h_s + h_b
    [h_1..h_b] -> [h_1..h_2b] is one product; delta likewise backwards, with A^T
    outputs at the last step only: nothing enters, delta_{s-b} = (A^T)^b delta_s

Rows hold decay^(s-1) h_s, and decay A takes the place of A.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from pathsgd.kernels import native
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

        h_1 = u,      h_{s+1} = A h_s + u
        delta_T = v,  delta_s = A^T delta_{s+1}  (+ v if every_step)

    A = weight ** 2, weight (H, H), T = steps. Row s-1 of the results, each (T, H) and of the type
    of u, holds h_s decay^(s-1) and delta_s decay^(T-s): with 1/decay near the Perron root of A
    neither overflows.
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
        return by_torch(weight, u, v, steps, every_step, decay)
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


def by_torch(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, every_step: bool, decay: float
) -> tuple[Tensor, Tensor]:
    """`squared_sequences` in torch alone."""
    A = weight.to(u.dtype).square() * decay
    h = constant_input_states(A, u, steps, decay, accumulate=True)
    return h, constant_input_states(A.t(), v, steps, decay, accumulate=every_step).flip(0)


def block_length(hidden: int, steps: int) -> int:
    """How far to double before stepping in blocks.

    Measured: matrix-vector steps win for short sequences.
    """
    if steps <= hidden / 4:
        return 1
    return 1 << max(0, min(6, round(math.log2(16 * steps / hidden))))


def constant_input_states(
    A: Tensor, u: Tensor, steps: int, decay: float, *, accumulate: bool, block: int = 0
) -> Tensor:
    """x_1 = u, x_{s+1} = A x_s + decay^s u (or A x_s), s = 1..steps-1; (steps, H)."""
    x = A.new_empty(steps, A.shape[0])
    x[0] = u
    block = block or block_length(A.shape[0], steps)
    power, done = A, 1
    while done < steps:
        count = min(done if done < block else block, steps - done)
        source = x[done - block : done - block + count] if done >= block else x[:count]
        target = x[done : done + count]
        torch.mm(source, power.t(), out=target)
        if accumulate:
            # h_{s+b} gets h_b, in the scale of step s+b; s counts from where `source` starts.
            first = done - block if done >= block else 0
            last = x[min(done, block) - 1]
            target.addr_(
                decay ** torch.arange(first + 1, first + count + 1, dtype=A.dtype, device=A.device),
                last,
            )
        if count == done and done < block and done + count < steps:
            power = power @ power
        done += count
    return x

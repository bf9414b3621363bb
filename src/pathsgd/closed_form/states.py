"""States of a linear recurrence under constant input, by doubling: a few matrix products instead of T small steps.

    h_{s+1} = A h_s + u,  h_1 = u          so  h_{s+b} = A^b h_s + h_b:  [h_1..h_b] -> [h_1..h_2b] is one product
    delta likewise backwards, with A^T; with outputs at the last step only nothing enters: delta_{s-b} = (A^T)^b delta_s

Scaled by the Perron root r >= 1 of A so that nothing overflows: rows hold r^-(s-1) h_s, and A/r takes the place of A.
Arrays are time first, (T, H). The native kernel computes the same sequences (`pathsgd._native`); this is its fallback
and, with `arithmetic.recurrence.states`, its oracle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathsgd import _native
from pathsgd.arithmetic.perron import perron_root


def block_length(hidden: int, steps: int) -> int:
    """How far to double before stepping in blocks; measured: matrix-vector steps win for short sequences."""
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
            target.addr_(decay ** torch.arange(first + 1, first + count + 1, dtype=A.dtype, device=A.device), last)
        if count == done and done < block and done + count < steps:
            power = power @ power
        done += count
    return x


def sequences(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, *, every_step: bool, root: float | None = None
) -> tuple[Tensor, Tensor, float]:
    """Scaled states h and adjoints delta of the squared recurrence, and the root r that was taken out.

    weight: W_rec (H, H); u: what enters each step (H,); v: what each output step collects (H,). Row s-1 of the first
    is r^-(s-1) h_s, row s-1 of the second is r^-(T-s) delta_s. root: a good guess of r, from an earlier call.
    """
    if root is None:
        root = max(1.0, perron_root(weight.to(u.dtype).square()))
    native = _native.squared_sequences(weight, u, v, steps, every_step, 1 / root)
    if native is not None:
        return (*native, root)
    A = weight.to(u.dtype).square() / root
    h = constant_input_states(A, u, steps, 1 / root, accumulate=True)
    delta = constant_input_states(A.t(), v, steps, 1 / root, accumulate=every_step)
    return h, delta.flip(0), root

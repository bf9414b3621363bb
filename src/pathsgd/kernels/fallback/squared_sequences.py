"""The squared recurrence by doubling: a few matrix products instead of T small steps.

    h_{s+1} = A h_s + u,  h_1 = u          so  h_{s+b} = A^b h_s + h_b:  [h_1..h_b] -> [h_1..h_2b] is one product
    delta likewise backwards, with A^T; with outputs at the last step only nothing enters: delta_{s-b} = (A^T)^b delta_s

Rows hold decay^(s-1) h_s, and decay A takes the place of A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def squared_sequences(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, every_step: bool, decay: float
) -> tuple[Tensor, Tensor]:
    A = weight.to(u.dtype).square() * decay
    h = constant_input_states(A, u, steps, decay, accumulate=True)
    return h, constant_input_states(A.t(), v, steps, decay, accumulate=every_step).flip(0)


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
            target.addr_(
                decay ** torch.arange(first + 1, first + count + 1, dtype=A.dtype, device=A.device),
                last,
            )
        if count == done and done < block and done + count < steps:
            power = power @ power
        done += count
    return x

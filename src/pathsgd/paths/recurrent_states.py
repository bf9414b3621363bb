"""States of the squared recurrence of one layer, in a scale in which nothing overflows.

    h_{s+1} = A h_s + u,  h_1 = u          delta likewise backwards, with A^T          A = W_rec^2 elementwise

Divided by powers of a root near the Perron root r >= 1 of A: rows hold r^-(s-1) h_s. Arrays are time first, (T, H).
"""

from __future__ import annotations

from torch import Tensor

from pathsgd.arithmetic.perron import perron_root
from pathsgd.kernels.squared_sequences import squared_sequences


def sequences(
    weight: Tensor, u: Tensor, v: Tensor, steps: int, *, every_step: bool, root: float | None = None
) -> tuple[Tensor, Tensor, float]:
    """Scaled states h and adjoints delta of the squared recurrence, and the root r that was taken out.

    weight: W_rec (H, H); u: what enters each step (H,); v: what each output step collects (H,). Row s-1 of the first
    is r^-(s-1) h_s, row s-1 of the second is r^-(T-s) delta_s. root: a good guess of r, from an earlier call.
    """
    if root is None:
        root = max(1.0, perron_root(weight.to(u.dtype).square(), u, v))
    return (*squared_sequences(weight, u, v, steps, every_step, 1 / root), root)

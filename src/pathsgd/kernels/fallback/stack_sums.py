"""Sums over the squared network of a stack of recurrent layers, by a sweep forth and one back in each direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from pathsgd.kernels.fallback.linear_sweep import linear_sweep

Weights = tuple[Tensor, Tensor, Sequence[Tensor]]
Sums = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""into, through, recurrent, w_in of one cell."""


class _Stack:
    """One pass forth and one back."""

    def __init__(
        self, layers: Sequence[Sequence[Weights]], steps: int, decay: float, dtype: torch.dtype
    ) -> None:
        self.steps, self.decay = steps, decay
        self.cells = [
            [
                (w_in.square(), w_rec.square() * decay, [b.square() for b in biases])
                for w_in, w_rec, biases in layer
            ]
            for layer in layers
        ]
        powers = decay ** torch.arange(
            steps, dtype=torch.float64, device=self.cells[0][0][0].device
        )
        self.fade, self.back = powers.to(dtype), powers.flip(0).to(dtype)

    def states(self, e: Tensor | None) -> list[list[Tensor]]:
        """Of each layer and direction, (T, H)."""
        found: list[list[Tensor]] = []
        for layer in self.cells:
            sides = []
            for direction, (w_in, w_rec, biases) in enumerate(layer):
                if found:
                    u = torch.cat(found[-1], 1) @ w_in.t()
                else:
                    u = torch.outer(
                        self.fade, w_in.sum(1) if e is None else w_in @ e.to(w_in.dtype)
                    )
                for bias in biases:
                    u = u + torch.outer(self.fade, bias)
                sides.append(_swept(w_rec, u, backwards=direction == 1))
            found.append(sides)
        return found

    def sums(
        self, states: list[list[Tensor]], above: list[Tensor]
    ) -> tuple[list[Sums], list[Tensor]]:
        """Of all cells from the lowest, and the derivatives of all states. above: what enters the highest states."""
        sums: list[Sums] = []
        derivatives: list[Tensor] = []
        for index in range(len(self.cells) - 1, -1, -1):
            below = torch.cat(states[index - 1], 1) if index else None
            own, entering = [], []
            for direction, (w_in, w_rec, _) in enumerate(self.cells[index]):
                h, delta = (
                    states[index][direction],
                    _swept(w_rec.t(), above[direction], backwards=direction == 0),
                )
                later, earlier = (delta[1:], h[:-1]) if direction == 0 else (delta[:-1], h[1:])
                through = (h.double() * delta.double()).sum(0)
                recurrent = (later.t() @ earlier) * self.decay
                own.append(
                    (
                        self.fade @ delta,
                        through,
                        recurrent,
                        None if below is None else delta.t() @ below,
                    )
                )
                derivatives.append(delta)
                entering.append(delta @ w_in)
            if below is not None:
                above = list(reduce(torch.add, entering).chunk(len(above), 1))
            sums = own + sums
        return sums, derivatives

    def gain(self) -> float:
        return math.prod(
            max(1.0, *(float(w_in.sum()) for w_in, _, _ in layer)) for layer in self.cells[1:]
        )


def _swept(matrix: Tensor, u: Tensor, *, backwards: bool) -> Tensor:
    return linear_sweep(matrix, u[:, None], None, None, backwards=backwards)[:, 0]


@torch.no_grad()
def stack_sums(
    layers: Sequence[Sequence[Weights]],
    w_out: Tensor,
    b_out: Tensor | None,
    e: Tensor | None,
    steps: int,
    reads: Sequence[int | None],
    decay: float,
    unused: Sequence[bool],
    trusted: tuple[float, float],
) -> tuple[list[Sums], Tensor, float, float, float, float, float]:
    """As `operations.stack_sums` has them."""
    stack = _Stack(layers, steps, decay, w_out.dtype)
    states = stack.states(e)
    top, v = states[-1], w_out.square().sum(0)
    out = torch.cat(
        [stack.back @ h if at is None else h[at] * stack.back[at] for h, at in zip(top, reads)]
    )
    rows = steps if reads[0] is None else 1
    bias = 0.0 if b_out is None else rows * decay ** (steps - 1) * float(b_out.square().sum())
    gamma_sq = float(v @ out) + bias
    if not trusted[0] < gamma_sq < trusted[1]:
        return [], out, gamma_sq, 0.0, math.inf, 0.0, 1.0
    growth = float((v @ top[0][-1]) / (v @ top[0][-2])) if steps > 1 and len(top) == 1 else 0.0
    above = []
    for side, at in zip(v.chunk(len(top)), reads):
        entering = torch.outer(stack.back, side)
        if at is not None:
            entering = torch.zeros_like(entering).index_copy(
                0, torch.tensor([at]).to(v.device), entering[at : at + 1]
            )
        above.append(entering)
    sums, derivatives = stack.sums(states, above)
    largest = max(float(t.amax()) for t in (*(h for layer in states for h in layer), *derivatives))
    used = [
        not last or not unused[k % len(top)]
        for k in range(len(sums))
        for last in [k >= len(sums) - len(top)]
    ]
    results = [out, *(s[0] for s in sums), *(s[3] for s in sums if s[3] is not None)]
    results += [s[2] for s, is_used in zip(sums, used) if is_used and steps > 1]
    least = min(float(t.amin()) for t in results)
    share = 1 / gamma_sq
    divided = [
        (a * share, b * share, c * share, None if d is None else d * share) for a, b, c, d in sums
    ]
    return (
        divided,
        out * share,
        gamma_sq,
        growth,
        largest if largest == largest else math.inf,
        least,
        stack.gain(),
    )

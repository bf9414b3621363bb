"""What kappa1 of a stack of recurrent layers is made of.

Sums over the sequences of its squared network.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.linear_sweep import by_torch as linear_sweep_by_torch
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields


class StackCell(ctypes.Structure):
    _fields_ = [
        *fields(POINTER, "w_in w_rec b_in b_rec into recurrent through kappa_in"),
        ("is_unused", INT),
    ]


class StackSumsCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "steps hidden inputs layers directions outputs threads"),
        *fields(POINTER, "cells w_out b_out e reads out"),
        *fields(REAL, "decay lowest_gamma_sq highest_gamma_sq gamma_sq growth largest least gain"),
    ]


class CellSums(NamedTuple):
    """Sums over time of one direction of one layer, divided by gamma^2."""

    into: Tensor
    """sum_t delta_t, (H,)"""
    through: Tensor
    """sum_t h_t .* delta_t, (H,), float64"""
    recurrent: Tensor
    """sum_t delta_{t+1} h_t^T, (H, H)"""
    w_in: Tensor | None
    """sum_t delta_t x_t^T, (H, I); None in the lowest layer, where x is the same at every step"""


class StackSums(NamedTuple):
    """The sums of all cells, from the lowest layer.

    What they are worth. Without range there are no sums.
    """

    cells: list[CellSums]
    out: Tensor
    """What the output layer has read, (directions * H,)"""
    gamma_sq: float
    growth: float
    """The sum of the highest states in the last step over that in the step before; 0 where there
    is none."""
    largest: float
    """Largest state or derivative; infinite where anything is not finite."""
    least: float
    """Smallest entry of any sum that paths use, but `through`, before the division by gamma^2."""
    gain: float
    """The product over upper layers of the largest sum of W_in^2 in a layer, each 1 at least."""


Weights = tuple[Tensor, Tensor, Sequence[Tensor]]
"""w_in (H, I), w_rec (H, H), up to two biases (H,)."""


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
) -> StackSums:
    """The sums in the weights' own dtype, scaled by powers of `decay`.

    e: (I,) float64, what each input carries, None for ones. reads: of each direction the step that
    the output layer reads, None for every step. unused: of each direction of the highest layer,
    whether no path uses its matrix.
    trusted: between what gamma^2 must lie for the sums to be made; outside there are none.
    """
    if len(reads) != len(layers[0]) or not all(at is None or 0 <= at < steps for at in reads):
        raise ValueError(f"{len(layers[0])} steps below {steps} are wanted, not {reads}")
    cells = [cell for layer in layers for cell in layer]
    weights = [w for w_in, w_rec, biases in cells for w in (w_in, w_rec, *biases)]
    weights += [w_out] if b_out is None else [w_out, b_out]
    dtype, hidden, directions = w_out.dtype, cells[0][1].shape[0], len(layers[0])
    if (
        dtype not in native.C_TYPES
        or not native.accepts(*weights, e)
        or not all(w.dtype is dtype and w.is_contiguous() for w in weights)
    ):
        found = by_torch(layers, w_out, b_out, e, steps, reads, decay, unused, trusted)
        return StackSums([CellSums(*of_cell) for of_cell in found[0]], *found[1:])
    width, inputs, lowest = directions * hidden, cells[0][0].shape[1], len(layers[0])
    sums = [_room(hidden, width if k >= lowest else None, dtype) for k in range(len(cells))]
    arrays = (StackCell * len(cells))(  # type: ignore[misc]
        *(
            _cell(
                cell,
                room,
                hidden,
                width if k >= lowest else inputs,
                k >= len(cells) - lowest and unused[k % lowest],
            )
            for k, (cell, room) in enumerate(zip(cells, sums))
        )
    )
    out, outputs = torch.empty(width, dtype=dtype), w_out.shape[0]
    steps_read = (INT * directions)(*(-1 if at is None else at for at in reads))
    arguments = StackSumsCall(
        *(steps, hidden, inputs, len(layers), directions, outputs, native.thread_count()),
        ctypes.addressof(arrays),
        address(w_out, dtype, outputs, width),
        address(b_out, dtype, outputs),
        address(e, torch.float64, inputs),
        *(ctypes.addressof(steps_read), out.data_ptr(), decay, *trusted),
    )
    native.call("stack_sums", arguments, dtype)
    a = arguments
    sums = sums if trusted[0] < a.gamma_sq < trusted[1] else []
    return StackSums(sums, out, a.gamma_sq, a.growth, a.largest, a.least, a.gain)


def _room(hidden: int, width: int | None, dtype: torch.dtype) -> CellSums:
    w_in = None if width is None else torch.empty(hidden, width, dtype=dtype)
    into, through = torch.empty(hidden, dtype=dtype), torch.empty(hidden, dtype=torch.float64)
    return CellSums(into, through, torch.empty(hidden, hidden, dtype=dtype), w_in)


def _cell(
    cell: Weights, room: CellSums, hidden: int, inputs: int, is_unused: bool
) -> tuple[int | None, ...]:
    w_in, w_rec, biases = cell
    b_in, b_rec = (*biases, None, None)[:2]
    dtype = w_rec.dtype
    return (
        address(w_in, dtype, hidden, inputs),
        address(w_rec, dtype, hidden, hidden),
        *(address(b, dtype, hidden) for b in (b_in, b_rec)),
        *(t.data_ptr() for t in (room.into, room.recurrent, room.through)),
        None if room.w_in is None else room.w_in.data_ptr(),
        is_unused,
    )


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
        """Of all cells from the lowest, and the derivatives of all states.

        Above: what enters the highest states.
        """
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
    return linear_sweep_by_torch(matrix, u[:, None], None, None, backwards=backwards)[:, 0]


@torch.no_grad()
def by_torch(
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
    """`stack_sums` in torch alone, as tuples."""
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

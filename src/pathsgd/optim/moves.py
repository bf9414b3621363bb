"""One step of some parameters while it is computed: the passes over their memory, in order.

square_sums   |u|^2 of every parameter           -> clip
moments       m, v
direction     of repeated matrices               -> step bound
apply         p <- keep * p + alpha * d .* w     together with the moments where no matrix is repeated
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pathsgd.kernels.update import GRADIENT, Operands, Update, UpdateRule, compute_dtype
from pathsgd.metric.bounds import DualNorm, Length
from pathsgd.optim import step_bound
from pathsgd.optim.clip import clip_factor
from pathsgd.optim.loading import refuse_other_shapes
from pathsgd.optim.parts import Part
from pathsgd.optim.shards import summed
from pathsgd.optim.step_bound import StepLimit


@dataclass
class Move:
    """How one part moves.

    rule: how its step is made of whitened gradients.
    alpha: the multiplier of the step's direction.
    moment_names: the states that hold the rule's first and second moments, if it has any.
    rate: a learning rate on the device, which nobody reads; `alpha` is then without it.
    corrects: whether the device counts the steps and makes Adam's corrections; `alpha` and eps are then without them.
    """

    part: Part
    rule: UpdateRule
    alpha: float
    moment_names: tuple[str, ...] = ()
    counts_steps: bool = False
    """Whether the states count the steps that were taken, as `step`."""
    rate: Tensor | None = None
    corrects: bool = False
    squares: list[float] = field(default_factory=list)
    """Squared lengths of the whitened gradients, parameter by parameter."""


@dataclass(frozen=True)
class Unread:
    """The largest of some numbers on a device, each with a factor; to read it is to wait for the device."""

    numbers: list[tuple[Tensor, float]]

    def read(self) -> float:
        """The number."""
        return max(float(number) * factor for number, factor in self.numbers)


@dataclass(frozen=True)
class Lengths:
    """What a step measured on its way; None where nobody asked."""

    dual_norm: float | Unread | None
    growth: float | Unread | None
    moved: bool = True
    finite: Tensor | None = None
    """Whether the gradient was finite, where only the device knows."""


def move(
    moves: Sequence[Move], clip: DualNorm | Length | None, limit: StepLimit, constant: float = 1.0
) -> Lengths:
    """One step of all parts.

    A gradient whose bounded length is not finite moves nothing.

    clip: bound on the gradients; None for none.
    limit: bound on growth; None for none.
    constant: what the direction is multiplied by; the moves' own multipliers have it already.
    """
    updates = [_update(m) for m in moves]
    try:
        return _move(moves, updates, clip, limit, constant)
    finally:
        for update in updates:
            update.release()


def _move(
    moves: Sequence[Move],
    updates: Sequence[Update],
    clip: DualNorm | Length | None,
    limit: StepLimit,
    constant: float,
) -> Lengths:
    if isinstance(clip, DualNorm) or limit is not None:
        for m, update in zip(moves, updates):
            m.squares = update.square_sums()
        if any(m.part.spread is not None for m in moves):
            _add_up_squares(moves)
    squares = [square for m in moves for square in m.squares]
    dual_norm, factor = clip_factor(squares, [m.part for m in moves], clip, constant)
    if factor == 0:
        return Lengths(dual_norm, None, moved=False)
    asks = step_bound.asks(moves, limit)
    for m, update in zip(moves, updates):
        signed = -factor if m.part.group["maximize"] else factor
        if m.rule.direction == GRADIENT:
            m.alpha *= signed
            continue
        m.rule = replace(m.rule, factor=signed)
        if asks:
            update.moments(m.rule)
        for state in m.part.states if m.counts_steps else ():
            state["step"] = state.get("step", 0) + 1
    grown, bound = step_bound.bound(moves, updates, limit)
    for m, update in zip(moves, updates):
        keep = 1 - float(m.part.group["lr"]) * m.part.group["weight_decay"]
        through = update.apply if asks or m.rule.direction == GRADIENT else update.advance
        through(m.rule, m.alpha * bound, keep)
    return Lengths(dual_norm, grown)


def _add_up_squares(moves: Sequence[Move]) -> None:
    """Squared lengths of whole parameters from those of the parts that processes hold."""
    own = torch.tensor([square for m in moves for square in m.squares], dtype=torch.float64)
    totals = iter(summed([m.part for m in moves], own).tolist())
    for m in moves:
        m.squares = [next(totals) for _ in m.squares]


def _update(m: Move) -> Update:
    """The passes of this step; those of the last one while they work on the same tensors (not only equal ones)."""
    part = m.part
    whitenings = [state["whitening"] for state in part.states]
    columns = [state.get("whitening_columns") for state in part.states]
    moments = [_moments(part, key) for key in m.moment_names]
    works_on = [*whitenings, *columns, *(moment for of_all in moments for moment in of_all)]
    same = len(works_on) == len(part.worked_on) and all(map(operator.is_, works_on, part.worked_on))
    if part.update is None or not same:
        none: list[Tensor] = []
        first, second = [*moments, none, none][:2]
        part.update = Update(
            Operands(part.params, part.gradients(), whitenings, first, second, columns, part.names)
        )
        part.worked_on = works_on
    else:
        part.update.renew(part.gradients())
    return part.update


def _moments(part: Part, key: str) -> list[Tensor]:
    """State `key` of every parameter, in its shape; zero where a parameter has none yet."""
    known = part.moments.get(key)
    if known is not None and all(
        state.get(key) is moment for state, moment in zip(part.states, known)
    ):
        return known
    refuse_other_shapes(key, part.names, part.params, part.states)
    # Copies: a state that was loaded may still be another optimiser's.
    moments = [
        state[key].clone(memory_format=torch.contiguous_format)
        if key in state
        else torch.zeros_like(p, dtype=compute_dtype(p.dtype))
        for p, state in zip(part.params, part.states)
    ]
    for state, moment in zip(part.states, moments):
        state[key] = moment
    part.moments[key] = moments
    return moments

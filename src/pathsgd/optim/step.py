"""One step of some parameters, in passes over their memory.

square_sums   |u|^2 of every parameter           -> clip
moments       what the rule remembers
direction     d, of repeated matrices            -> step bound
apply         p <- keep * p + alpha * d .* w     together with the moments where nothing is bounded

device.py has the same for a GPU, where the host must not wait for these numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.update import GRADIENT, Operands, Update, UpdateRule, compute_dtype
from pathsgd.kernels.whiten import Outer
from pathsgd.metric.bounds import DualNorm, clip_factor, length
from pathsgd.optim.plan import Part, Plan, adder
from pathsgd.optim.rules import Fused, Rule
from pathsgd.optim.step_bound import shortening

_DIRECTED = UpdateRule(-1)
_WHITENED, _WHITENED_ONCE = UpdateRule(GRADIENT), UpdateRule(GRADIENT, whitens=False)


@dataclass(frozen=True)
class Outcome:
    """What a step found on its way."""

    dual_norm: float | Unread | None = None
    """None where it was not asked for."""
    moved: bool = True
    finite: Tensor | None = None
    """Whether the gradient was finite, where only the device knows."""


@dataclass(frozen=True)
class Unread:
    """A number on a device, times a factor; reading it synchronises the device."""

    number: Tensor
    factor: float

    def read(self) -> float:
        """The number."""
        return float(self.number) * self.factor


@dataclass
class Move:
    """How one part moves: p <- keep * p + alpha * d .* w."""

    part: Part
    rule: UpdateRule
    alpha: float
    passes: Any
    counts: bool
    """Whether the rule's state counts the steps."""
    squares: list[float] = field(default_factory=list)
    """Squared lengths of the whitened gradients, parameter by parameter."""

    @property
    def is_gradient(self) -> bool:
        """Whether d is the whitened gradient itself."""
        return self.rule.direction == GRADIENT


def move(parts: list[Part], plan: Plan, constant: float) -> Outcome:
    """One step of all parts; a gradient whose bounded length is not finite moves nothing.

    constant: what every direction is multiplied by.
    """
    moves = [_move_of(part, plan, constant) for part in parts]
    try:
        return _move(moves, parts, plan, constant)
    finally:
        for m in moves:
            m.passes.release()


def _move_of(part: Part, plan: Plan, constant: float) -> Move:
    lr = float(part.group["lr"])
    fused = plan.rule.fused(part.states[0].rule, part.group, lr) if part.is_fused else None
    if fused is None:
        passes = _Directed(part, plan.rule, _update(part, Fused(_WHITENED, lr)))
        return Move(part, _DIRECTED, -lr * constant, passes, counts=False)
    rule = replace(fused.update, whitens=fused.update.whitens and plan.whitens)
    counts = hasattr(part.states[0].rule, "step")
    return Move(part, rule, -fused.length * constant, _update(part, fused), counts)


def _move(moves: list[Move], parts: list[Part], plan: Plan, constant: float) -> Outcome:
    clip, is_dual = plan.clip, isinstance(plan.clip, DualNorm)
    if is_dual or plan.bounds_steps:
        for m in moves:
            m.squares = m.passes.square_sums()
        _add_up_squares(moves, parts)
    norm, factor = None, 1.0
    if isinstance(clip, DualNorm):
        norm = math.sqrt(constant * sum(square for m in moves for square in m.squares))
        factor = clip_factor(norm, clip.limit)
    elif clip is not None:
        long = length(directions(parts), adder(parts))
        factor = clip_factor(constant * long, clip.limit)
    if factor == 0:
        return Outcome(norm, moved=False)
    bounds = plan.bounds_steps and any(s.growth.repeats for m in moves for s in m.part.states)
    for m in moves:
        signed = -factor if m.part.group["maximize"] else factor
        if m.is_gradient:
            m.alpha *= signed
            continue
        m.rule = replace(m.rule, factor=signed)
        if bounds:
            m.passes.moments(m.rule)
        for state in m.part.states if m.counts else ():
            state.rule.step += 1
    shorter = shortening(moves) if bounds else 1.0
    for m in moves:
        keep = 1 - float(m.part.group["lr"]) * m.part.group["weight_decay"]
        through = m.passes.apply if bounds or m.is_gradient else m.passes.advance
        through(m.rule, m.alpha * shorter, keep)
    return Outcome(norm)


def _add_up_squares(moves: list[Move], parts: list[Part]) -> None:
    """Squared lengths of whole parameters from those of the parts that processes hold."""
    summed = adder(parts)
    if summed is not None:
        own = torch.tensor([square for m in moves for square in m.squares], dtype=torch.float64)
        found = iter(summed(own).tolist())
        for m in moves:
            m.squares = [next(found) for _ in m.squares]


def directions(parts: Sequence[Part]) -> list[Tensor]:
    """grad / K of every parameter, in float64: 1/K may leave the range of a narrower type."""
    return [
        gradient.double() * state.dense_whitening().double().square()
        for part in parts
        for gradient, state in zip(part.gradients(), part.states)
    ]


def _update(part: Part, fused: Fused) -> Update:
    """The kernel's passes; those of the last step while they work on the same tensors."""
    whitenings = [state.whitening for state in part.states]
    moments = [[_moment(state.rule, name, p) for state, p in zip(part.states, part.params)]
               for name in fused.moments]  # fmt: skip
    works_on = [*whitenings, *(moment for of_all in moments for moment in of_all)]
    same = len(works_on) == len(part.works_on) and all(map(operator.is_, works_on, part.works_on))
    if part.passes is not None and same:
        part.passes.renew(part.gradients())
        return part.passes  # type: ignore[no-any-return]
    none: list[Tensor] = []
    first, second = [*moments, none, none][:2]
    rows = [w.rows if isinstance(w, Outer) else w for w in whitenings]
    columns = [w.columns if isinstance(w, Outer) else None for w in whitenings]
    expanded = [w.expand(p.shape) for w, p in zip(rows, part.params)]  # type: ignore[union-attr]
    part.works_on = works_on
    part.passes = Update(
        Operands(part.params, part.gradients(), expanded, first, second, columns, part.names)
    )
    return part.passes


def _moment(state: Any, name: str, p: Tensor) -> Tensor:
    """A moment of the rule; zero where the settings have asked for none so far."""
    if getattr(state, name) is None:
        setattr(state, name, torch.zeros_like(p.detach(), dtype=compute_dtype(p.dtype)))
    return getattr(state, name)  # type: ignore[no-any-return]


class _Directed:
    """The passes of a rule that no kernel has, by its `direction`; the kernel whitens and moves."""

    def __init__(self, part: Part, rule: Rule, update: Update) -> None:
        self._part, self._rule, self._update = part, rule, update
        self._directions: list[Tensor] = []

    def square_sums(self) -> list[float]:
        return self._update.square_sums()

    def moments(self, update: UpdateRule) -> None:
        us = (self._update.direction(_WHITENED, index) for index in range(len(self._part.states)))
        bounded = us if update.factor == 1 else (u.mul_(update.factor) for u in us)
        self._directions = self._part.directions(bounded, self._rule)

    def direction(self, update: UpdateRule, index: int) -> Tensor:
        whitening = self._part.states[index].dense_whitening()
        return torch.where(whitening == 0, 0.0, self._directions[index])

    def direction_square(self, update: UpdateRule, index: int) -> float:
        return float(self.direction(update, index).double().square().sum())

    def apply(self, update: UpdateRule, alpha: float, keep: float) -> None:
        self._update.renew(self._directions)
        self._update.apply(_WHITENED_ONCE, alpha, keep)

    def advance(self, update: UpdateRule, alpha: float, keep: float) -> None:
        self.moments(update)
        self.apply(update, alpha, keep)

    def release(self) -> None:
        self._directions = []
        self._update.release()

"""One step on a GPU or another accelerator: few operations, and no wait for any of them.

The same step as in step.py, in the same order. The whitenings and the moments of a part's
parameters are stored end to end, in one flat tensor each (the states hold views of it), so that one
operation serves all of them. The factors of clipping and of the step bound are device tensors.

A gradient that is not finite must move nothing, but the host does not know of it. So the moments'
coefficients become those of no change, and the step is divided by infinity. Adam's step count is on
the host and has already risen: it is corrected when the host next reads the device, at the next
measurement at the latest (`Skips`).

A step captured in a graph (`capturable=True`) is replayed without the host. So the count is on the
device, a learning rate that is a tensor is not read, and all state from one step to the next stays
at its address.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import read
from pathsgd.kernels.update import ADAM, GRADIENT, NESTEROV, UpdateRule, compute_dtype
from pathsgd.metric.bounds import DualNorm
from pathsgd.optim.plan import Part, Plan
from pathsgd.optim.state import Growth
from pathsgd.optim.step import Outcome, Unread
from pathsgd.optim.step_bound import LEAST_ROOM, generic_vector

_ITERATIONS, _FIRST_ITERATIONS = 2, 18
"""Of the power iteration for a step's length: from the last step's vector, and from nowhere."""
_DIRECTED = UpdateRule(-1)
_KEPT = {torch.float32: 1e-8, torch.float64: 1e-30}
"""Share of the old vector in the new one: negligible beside a step; keeps it if no step is made."""


@dataclass
class _Move:
    """How one part moves. rate: a learning rate on the device; `alpha` is then without it."""

    part: Part
    flat: Flat
    rule: UpdateRule
    alpha: float
    moments: list[Tensor]
    rate: Tensor | None
    counts: bool

    @property
    def is_directed(self) -> bool:
        """Whether no kernel has the rule; it counts its own steps."""
        return self.rule is _DIRECTED


def move(parts: list[Part], plan: Plan, constant: float, skips: Skips) -> Outcome:
    """One step of all parts, which lie on one device; `step.move` says what the arguments are."""
    moves = [_move_of(part, plan, constant) for part in parts]
    whitened = [m.flat.gather(m.part.gradients()).mul_(m.flat.whitening) for m in moves]
    norm, finite = None, None
    if plan.clip is not None:
        is_dual = isinstance(plan.clip, DualNorm)
        bounded = whitened if is_dual else [u * m.flat.whitening for m, u in zip(moves, whitened)]
        norm = _norm(parts, bounded)
        finite = norm < math.inf
        most = plan.clip.limit / (math.sqrt(constant) if is_dual else constant)
        over = norm.clamp(min=most)
        for u in whitened:
            u.div_(over).nan_to_num_(0.0, 0.0, 0.0)
            if most != 1:
                u.mul_(most)
        norm = norm if is_dual else None
    gates = [_gates(m, finite) for m in moves]
    found = [_direction(m, u, gate, finite, plan) for m, u, gate in zip(moves, whitened, gates)]
    skips.launched(moves, finite, on_device=plan.capturable)
    excess = _excess(moves, found) if plan.bounds_steps else None
    for m, d, gate in zip(moves, found, gates):
        _apply(m, d, gate, excess)
    return Outcome(None if norm is None else Unread(norm, math.sqrt(constant)), finite=finite)


def _move_of(part: Part, plan: Plan, constant: float) -> _Move:
    lr = part.group["lr"]
    rate = lr if plan.capturable and isinstance(lr, Tensor) else None
    state, corrected = part.states[0].rule, not plan.capturable
    length = 1.0 if rate is not None else float(lr)
    fused = None
    if part.is_fused:
        fused = plan.rule.fused(state, part.group, length, corrected=corrected)
    if not isinstance(part.passes, Flat):
        part.passes = Flat(part, [p.numel() for p in part.params], part.params[0].detach())
    counts = hasattr(state, "step")
    if fused is None:
        part.passes.keep_up(())
        return _Move(part, part.passes, _DIRECTED, -length * constant, [], rate, counts)
    rule = replace(fused.update, whitens=fused.update.whitens and plan.whitens)
    moments = part.passes.keep_up(fused.moments)
    return _Move(part, part.passes, rule, -fused.length * constant, moments, rate, counts)


def _norm(parts: Sequence[Part], vectors: Sequence[Tensor]) -> Tensor:
    """The length of all vectors together; in float64, because squares leave single precision."""
    norms = [torch.linalg.vector_norm(u, dtype=torch.float64) for u in vectors]
    if any(part.spread is not None for part in parts):
        norms = [part.summed(n.square()).sqrt() for part, n in zip(parts, norms)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _gates(m: _Move, finite: Tensor | None) -> Tensor:
    """What depends on whether the gradient is finite.

    The moments' two coefficients, the least divisor of the step, and the steps to count (0 or 1).
    """
    rule, is_adam = m.rule, m.rule.direction == ADAM
    first, second = (1 - rule.betas[0], rule.betas[1]) if is_adam else (rule.momentum, 1.0)
    kept = (0.0, 1.0) if is_adam else (1.0, 1.0)
    usual = m.flat.constant((first, second, 1.0, 1.0))
    bad = m.flat.constant((*kept, math.inf, 0.0))
    return usual if finite is None else torch.where(finite, usual, bad)


def _direction(m: _Move, u: Tensor, gate: Tensor, finite: Tensor | None, plan: Plan) -> Tensor:
    """Brings the moments up to date; the direction before it is whitened a second time."""
    if m.part.group["maximize"]:
        u.neg_()
    d = _directed(m, u, finite, plan) if m.is_directed else _of_rule(m, u, gate, plan)
    return d if m.rate is None else d.mul_(m.rate)


def _directed(m: _Move, u: Tensor, finite: Tensor | None, plan: Plan) -> Tensor:
    """By the rule's `direction`, matrix by matrix; without a gradient a state does not change."""
    tensors = [
        value
        for state in m.part.states
        for value in state.of_rule().values()
        if isinstance(value, Tensor)
    ]
    before = [] if finite is None else [t.clone() for t in tensors]
    views = m.flat.views(u)
    for view, d in zip(views, m.part.directions(views, plan.rule)):
        view.copy_(d)
    for t, old in zip(tensors, before):
        t.copy_(torch.where(finite, t, old))  # type: ignore[arg-type]
    return u


def _of_rule(m: _Move, u: Tensor, gate: Tensor, plan: Plan) -> Tensor:
    rule = m.rule
    if rule.direction == GRADIENT:
        return u
    first = m.moments[0]
    if rule.direction != ADAM:
        first.mul_(gate[0]).add_(u)
        return u.add_(first, alpha=rule.momentum) if rule.direction == NESTEROV else first.clone()
    if not rule.whitens:
        u.mul_(m.flat.whitening)
    second = m.moments[1]
    first.lerp_(u, gate[0])
    second.mul_(gate[1]).addcmul_(u, u, value=1 - rule.betas[1])
    if not plan.capturable:
        return first / second.sqrt().add_(rule.eps)
    # A first step that is skipped divides 0 by 0, and must add nothing all the same.
    left = 1 - m.flat.constant(rule.betas).pow(m.flat.count.add_(gate[3]))
    return (first / (second / left[1]).sqrt_().add_(rule.eps)).div_(left[0]).nan_to_num_(0.0)


def _apply(m: _Move, d: Tensor, gate: Tensor, excess: Tensor | None) -> None:
    """p <- keep * p + alpha * d .* w, shortened by the step bound; nothing if the gate is shut."""
    d.div_(gate[2] if excess is None else torch.maximum(excess, gate[2]))
    group, params, flat = m.part.group, m.part.params, m.flat
    rate, keep = m.rate if m.rate is not None else float(group["lr"]), None
    if group["weight_decay"]:
        decay = rate * group["weight_decay"]
        keep = None if isinstance(decay, float) and not decay else 1 - decay / gate[2]
    if (
        compute_dtype(params[0].dtype) != params[0].dtype
    ):  # summed in single precision, rounded once
        p = flat.gather(params)
        if keep is not None:
            p.mul_(keep)
        step = d.mul_(flat.whitening) if m.rule.whitens else d
        torch._foreach_copy_(params, flat.views(p.add_(step, alpha=m.alpha)))
        return
    if keep is not None:
        torch._foreach_mul_(params, keep)
    if m.rule.whitens:
        whitenings = flat.views(flat.whitening)
        torch._foreach_addcmul_(params, flat.views(d), whitenings, value=m.alpha)
    else:
        torch._foreach_add_(params, flat.views(d), alpha=m.alpha)


def _excess(moves: Sequence[_Move], found: Sequence[Tensor]) -> Tensor | None:
    """The largest growth of a repeated matrix in this step, in units of its room."""
    excess = []
    for m, d in zip(moves, found):
        for index, state in enumerate(m.part.states):
            if state.growth.repeats:
                step, is_adam = m.flat.in_growth(d, index), m.rule.direction == ADAM
                length = _length(step, state.growth, is_adam=is_adam)
                uses, room = abs(m.alpha) * state.growth.repeats, state.growth.room
                if isinstance(room, Tensor):  # both factors in one operation
                    nothing = m.flat.constant((0.0,))[0]
                    excess.append(torch.addcdiv(nothing, length, room, value=uses))
                else:
                    excess.append(length * (uses / (LEAST_ROOM if room is None else room)))
    if not excess:
        return None
    return excess[0] if len(excess) == 1 else torch.stack(excess).amax()


def _length(step: Tensor, growth: Growth, *, is_adam: bool) -> Tensor:
    """|D|_2 of one matrix by power iteration."""
    if not is_adam:
        step = step.double()  # Adam's steps are of the order of 1; others may be of any order
    v, kept = growth.vector, _KEPT[step.dtype]
    if v is None:
        v = generic_vector(step)
        for _ in range(_FIRST_ITERATIONS - _ITERATIONS):
            v = torch.addmv(v, step.t(), step @ v, beta=kept)
            v = v / torch.linalg.vector_norm(v)
    v = v.to(step.dtype)
    for _ in range(_ITERATIONS):
        v = torch.addmv(v, step.t(), step @ v, beta=kept)
    length, size = torch._foreach_norm([step @ v, v])
    if growth.vector is None or growth.vector.dtype != v.dtype:
        growth.vector = v.div_(size)
    else:
        torch.div(v, size, out=growth.vector)
    return length / size


class Skips:
    """Steps of which the host does not know yet whether they were taken."""

    def __init__(self) -> None:
        self.unread: list[Tensor] = []
        """For each of them, whether its gradient was finite."""
        self._states: list[list[Any]] = []
        self._counts: dict[int, tuple[Tensor, list[Any]]] = {}

    def launched(self, moves: Sequence[_Move], finite: Tensor | None, *, on_device: bool) -> None:
        """A step was launched. on_device: whether the device counts it."""
        counting = [m for m in moves if m.counts]
        if on_device:
            for m in (m for m in counting if not m.is_directed):
                states = [state.rule for state in m.part.states]
                self._counts[id(m.flat.count)] = m.flat.count, states
            return
        for m in counting:
            for state in m.part.states if not m.is_directed else ():
                state.rule.step += 1
        if finite is not None:
            self.unread.append(finite)
            self._states.append([state.rule for m in counting for state in m.part.states])

    def settle(self, values: Sequence[float] | None = None) -> None:
        """Take skipped steps out of the count. values: of `unread`, if they have been read."""
        values = read([], self.unread) if values is None else values
        for finite, states in zip(values, self._states):
            for state in states if not finite else ():
                state.step -= 1
        self.unread, self._states = [], []

    def settle_counts(self) -> None:
        """Write the device's counts into the states; the host waits for it."""
        counts = list(self._counts.values())
        for steps, (_, states) in zip(read([], [count for count, _ in counts]), counts):
            for state in states:
                state.step = round(steps)

    def close_counts(self) -> None:
        """The same before parameters are put together anew: from now on others count."""
        self.settle_counts()
        self._counts = {}


@dataclass
class Flat:
    """A part's whitenings and moments end to end; the states hold views of them."""

    part: Part
    sizes: list[int]
    whitening: Tensor
    _laid: dict[str, tuple[Tensor, list[Tensor]]] = field(default_factory=dict)
    _masks: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)
    _constants: dict[tuple[float, ...], Tensor] = field(default_factory=dict)

    @functools.cached_property
    def count(self) -> Tensor:
        """Steps taken, 0-d, float64; `Skips` takes the states' counts from here."""
        taken = float(self.part.states[0].rule.step)
        return torch.full((), taken, dtype=torch.float64, device=self.part.params[0].device)

    def release(self) -> None:
        """Nothing is kept of a step."""

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view for each parameter, in its shape."""
        return [t.view(p.shape) for t, p in zip(flat.split(self.sizes), self.part.params)]

    def in_growth(self, d: Tensor, index: int) -> Tensor:
        """A matrix's direction in balanced coordinates; entries on no path are 0."""
        state, shape = self.part.states[index], self.part.params[index].shape
        if index not in self._masks or self._masks[index][0] is not state.whitening:
            mask, ratio = state.dense_whitening() != 0, state.growth.ratio
            new = mask.to(d.dtype) if ratio is None else mask * ratio
            known = self._masks.get(index, (None, new))[1]
            self._masks[index] = state.whitening, new if known is new else known.copy_(new)
        first = sum(self.sizes[:index])
        own = d[first : first + self.sizes[index]].view(shape) * self._masks[index][1]
        step = self.part.whole(own, index)
        return step.reshape(step.shape[0], -1)

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """A copy of these tensors, one for each parameter, end to end."""
        dtype = compute_dtype(self.part.params[0].dtype)
        return torch.cat([t.reshape(-1) for t in tensors]).to(dtype)

    def constant(self, values: tuple[float, ...]) -> Tensor:
        """These numbers on the device; copied there once."""
        if values not in self._constants:
            device = self.part.params[0].device
            new = torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
            self._constants[values] = new
        return self._constants[values]

    def keep_up(self, moments: Sequence[str]) -> list[Tensor]:
        """Lay out what was measured, loaded or begun since the last step; the moments, flat."""
        states = self.part.states
        if not self._holds("whitening", states):
            known = [s.dense_whitening().expand(p.shape) for s, p in zip(states, self.part.params)]
            self.whitening = self._lay("whitening", known, states)
        rules = [state.rule for state in states]
        for name in moments:
            if not self._holds(name, rules):
                of_all = zip(rules, self.part.params)
                known = [
                    torch.zeros_like(p) if (t := getattr(rule, name)) is None else t
                    for rule, p in of_all
                ]
                self._lay(name, known, rules)
        return [self._laid[name][0] for name in moments]

    def _holds(self, name: str, states: Sequence[Any]) -> bool:
        """Whether every state still is the view that was put there."""
        views = self._laid[name][1] if name in self._laid else None
        return views is not None and all(getattr(s, name) is v for s, v in zip(states, views))

    def _lay(self, name: str, tensors: Sequence[Tensor], states: Sequence[Any]) -> Tensor:
        flat = self.gather(tensors)
        if name in self._laid:  # over the last one: a captured step reads there
            flat = self._laid[name][0].copy_(flat)
        views = self.views(flat)
        self._laid[name] = flat, views
        for state, view in zip(states, views):
            setattr(state, name, view)
        return flat

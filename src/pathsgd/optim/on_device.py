"""One step on a GPU or another device: few operations, and no wait for any of them.

The same step as in moves.py, in the same order. What the parameters of a part need lies end to end in one flat tensor
each (whitenings, moments; the states hold views of it), so that one operation serves all of them. What clipping leaves
and how far growth lets the step go are numbers on the device, which the next operation multiplies with.

A gradient that is not finite must move nothing, and the host does not know of it. So the coefficients of the moments
become those of no change, and the step is divided by infinity. Adam's count of steps lies on the host and has gone up
all the same: it is put right when the host looks the next time, at the next measurement at the latest (`Skips`).

A step that is to be captured in a graph (`capturable=True`) is repeated without the host. So the count lies on the
device, a learning rate that is a tensor is not read, and whatever one step leaves for the next stays in its place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import read
from pathsgd.kernels.update import ADAM, GRADIENT, NESTEROV, compute_dtype
from pathsgd.metric.bounds import DualNorm, Length
from pathsgd.optim.moves import Lengths, Move, Unread
from pathsgd.optim.parts import Part, whitening_of
from pathsgd.optim.step_bound import LEAST_ROOM, StepLimit

_ITERATIONS, _FIRST_ITERATIONS = 2, 18
"""Of the power iteration for a step's length, from the last step's vector and from nowhere, as in step_bound.py."""
_KEPT = {torch.float32: 1e-8, torch.float64: 1e-30}
"""Share of the old vector in the new one: nothing beside a step, and where there is none, the old vector is left."""


def move(
    moves: Sequence[Move], clip: DualNorm | Length | None, limit: StepLimit, constant: float = 1.0
) -> Lengths:
    """One step of all parts, which lie on one device; `moves.move` says what the arguments are."""
    flats = [_flat(m) for m in moves]
    whitened = [f.gather(m.part.gradients()).mul_(f.whitening) for m, f in zip(moves, flats)]
    norm, finite = None, None
    if clip is not None:
        is_dual = isinstance(clip, DualNorm)
        norm = _norm(
            flats, whitened if is_dual else [u * f.whitening for f, u in zip(flats, whitened)]
        )
        finite = norm < math.inf
        most = clip.limit / (math.sqrt(constant) if is_dual else constant)
        over = norm.clamp(min=most)
        for u in whitened:
            u.div_(over).nan_to_num_(0.0, 0.0, 0.0)
            if most != 1:
                u.mul_(most)
        norm = norm if is_dual else None
    directions, gates = [], []
    for m, f, u in zip(moves, flats, whitened):
        gates.append(_gates(m, f, finite))
        directions.append(_direction(m, f, u, gates[-1]))
        if m.rate is not None:
            directions[-1].mul_(m.rate)
        for state in m.part.states if m.counts_steps and not m.corrects else ():
            state["step"] = state.get("step", 0) + 1
    grown = None if limit is None else _growth(moves, flats, directions, limit)
    for m, f, d, gate in zip(moves, flats, directions, gates):
        _apply(m, f, d, gate, None if grown is None else grown[1])
    return Lengths(
        None if norm is None else Unread([(norm, math.sqrt(constant))]),
        None if limit is None else 0.0 if grown is None else grown[0],
        finite=finite,
    )


def _norm(flats: Sequence[Flat], whitened: Sequence[Tensor]) -> Tensor:
    """The length of all tensors together; in float64, because squares of single precision leave its range."""
    norms = [torch.linalg.vector_norm(u, dtype=torch.float64) for u in whitened]
    for i, f in enumerate(flats):
        if f.part.spread is not None:
            norms[i] = f.part.spread.summed(norms[i].square()).sqrt()
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _gates(m: Move, f: Flat, finite: Tensor | None) -> Tensor:
    """What depends on whether the gradient is finite.

    The moments' two coefficients, the least divisor of the step, and how many steps this one counts for.
    """
    rule = m.rule
    first, second = (
        (1 - rule.betas[0], rule.betas[1]) if rule.direction == ADAM else (rule.momentum, 1.0)
    )
    kept = (0.0, 1.0) if rule.direction == ADAM else (1.0, 1.0)
    usual, bad = f.constant((first, second, 1.0, 1.0)), f.constant((*kept, math.inf, 0.0))
    return usual if finite is None else torch.where(finite, usual, bad)


def _direction(m: Move, f: Flat, u: Tensor, gate: Tensor) -> Tensor:
    """The new moments, and the direction that the step follows, before it is whitened a second time."""
    rule = m.rule
    if m.part.group["maximize"]:
        u.neg_()
    if rule.direction == GRADIENT:
        return u
    first = f.moments[m.moment_names[0]]
    if rule.direction != ADAM:
        first.mul_(gate[0]).add_(u)
        return u.add_(first, alpha=rule.momentum) if rule.direction == NESTEROV else first.clone()
    if not rule.whitens:
        u.mul_(f.whitening)
    second = f.moments[m.moment_names[1]]
    first.lerp_(u, gate[0])
    second.mul_(gate[1]).addcmul_(u, u, value=1 - rule.betas[1])
    if not m.corrects:
        return first / second.sqrt().add_(rule.eps)
    # A first step that is skipped divides 0 by 0, and must add nothing all the same.
    left = 1 - f.constant(rule.betas).pow(f.count.add_(gate[3]))
    return (first / (second / left[1]).sqrt_().add_(rule.eps)).div_(left[0]).nan_to_num_(0.0)


def _apply(m: Move, f: Flat, d: Tensor, gate: Tensor, grown: Tensor | None) -> None:
    """p <- keep * p + alpha * d .* w, shortened so that growth stays below its limit; nothing if the gate is shut."""
    d.div_(gate[2] if grown is None else torch.maximum(grown, gate[2]))
    group, params = m.part.group, m.part.params
    decay = (
        (m.rate if m.rate is not None else float(group["lr"])) * group["weight_decay"]
        if group["weight_decay"]
        else 0.0
    )
    keep = None if isinstance(decay, float) and not decay else 1 - decay / gate[2]
    if compute_dtype(params[0].dtype) != params[0].dtype:
        _apply_rounded(f, d.mul_(f.whitening) if m.rule.whitens else d, m.alpha, keep)
        return
    if keep is not None:
        torch._foreach_mul_(params, keep)
    if m.rule.whitens:
        torch._foreach_addcmul_(params, f.views(d), f.views(f.whitening), value=m.alpha)
    else:
        torch._foreach_add_(params, f.views(d), alpha=m.alpha)


def _apply_rounded(f: Flat, d: Tensor, alpha: float, keep: Tensor | None) -> None:
    """The same for parameters in half precision: the sum is made in single precision and rounded once."""
    p = f.gather(f.part.params)
    if keep is not None:
        p.mul_(keep)
    torch._foreach_copy_(f.part.params, f.views(p.add_(d, alpha=alpha)))


# ---- growth ------------------------------------------------------------------------------------------------------


def _growth(
    moves: Sequence[Move],
    flats: Sequence[Flat],
    directions: Sequence[Tensor],
    limit: float | Literal["room"],
) -> tuple[Unread, Tensor] | None:
    """The largest growth of a repeated matrix in this step, and in units of its limit (step_bound.py)."""
    found: list[tuple[Tensor, float]] = []
    excess = []
    for m, f, d in zip(moves, flats, directions):
        for index, state in enumerate(m.part.states):
            if "repeats" in state:
                length = _length(f.in_growth(d, index), state, is_adam=m.rule.direction == ADAM)
                found.append((length, abs(m.alpha) * state["repeats"]))
                most = state.get("growth_room", LEAST_ROOM) if limit == "room" else limit
                if isinstance(most, Tensor):  # both factors in one operation
                    excess.append(
                        torch.addcdiv(f.constant((0.0,))[0], length, most, value=found[-1][1])
                    )
                else:
                    excess.append(length * (found[-1][1] / most))
    if not found:
        return None
    return Unread(found), excess[0] if len(excess) == 1 else torch.stack(excess).amax()


def _length(step: Tensor, state: dict[str, Any], *, is_adam: bool) -> Tensor:
    """|D|_2 of one matrix by power iteration."""
    if not is_adam:
        step = step.double()  # Adam's steps are of the order of 1; others may be of any order
    v, kept = state.get("growth_direction"), _KEPT[step.dtype]
    if v is None:
        v = torch.arange(1, step.shape[1] + 1, dtype=step.dtype, device=step.device).cos()
        for _ in range(_FIRST_ITERATIONS - _ITERATIONS):
            v = torch.addmv(v, step.t(), step @ v, beta=kept)
            v = v / torch.linalg.vector_norm(v)
    v = v.to(step.dtype)
    for _ in range(_ITERATIONS):
        v = torch.addmv(v, step.t(), step @ v, beta=kept)
    length, size = torch._foreach_norm([step @ v, v])
    known = state.get("growth_direction")
    if known is None or known.dtype != v.dtype:
        state["growth_direction"] = v.div_(size)
    else:
        torch.div(v, size, out=known)
    return length / size


class Skips:
    """Steps of which the host does not know yet whether they were taken."""

    def __init__(self) -> None:
        self.unread: list[Tensor] = []
        """For each of them, whether its gradient was finite."""
        self._states: list[list[dict[str, Any]]] = []
        self._counts: dict[int, tuple[Tensor, list[dict[str, Any]]]] = {}

    def count_there(self, m: Move) -> None:
        """The device has counted this step."""
        if m.corrects:
            count = m.part.flat.count
            self._counts[id(count)] = count, m.part.states

    def add(self, finite: Tensor, states: list[dict[str, Any]]) -> None:
        """A step has been launched that counts in these states."""
        self.unread.append(finite)
        self._states.append(states)

    def settle(self, values: Sequence[float] | None = None) -> None:
        """Take steps that were skipped out of the count. values: of `unread`, if somebody has read them already."""
        for finite, states in zip(
            read([], self.unread) if values is None else values, self._states
        ):
            for state in states if not finite else ():
                state["step"] -= 1
        self.unread, self._states = [], []

    def settle_counts(self) -> None:
        """Tell the states how many steps the device has counted; the host waits for it."""
        counts = list(self._counts.values())
        for steps, (_, states) in zip(read([], [count for count, _ in counts]), counts):
            for state in states:
                state["step"] = round(steps)

    def close_counts(self) -> None:
        """The same before parameters are put together anew: from now on others count."""
        self.settle_counts()
        self._counts = {}


# ---- what lies end to end ----------------------------------------------------------------------------------------


@dataclass
class Flat:
    """The parameters of one part, end to end: their whitenings and moments, of which the states hold views."""

    part: Part
    sizes: list[int]
    whitening: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    _views: dict[str, list[Tensor]] = field(default_factory=dict)
    _masks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _constants: dict[tuple[float, ...], Tensor] = field(default_factory=dict)

    @functools.cached_property
    def count(self) -> Tensor:
        """Steps taken, 0-d, float64; whoever counts here takes the states' counts back from here (`Skips`)."""
        taken = float(self.part.states[0].get("step", 0))
        return torch.full((), taken, dtype=torch.float64, device=self.part.params[0].device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """One view for each parameter, in its shape."""
        return [t.view(p.shape) for t, p in zip(flat.split(self.sizes), self.part.params)]

    def one(self, flat: Tensor, index: int) -> Tensor:
        """The view for one parameter."""
        first = sum(self.sizes[:index])
        return flat[first : first + self.sizes[index]].view(self.part.params[index].shape)

    def in_growth(self, d: Tensor, index: int) -> Tensor:
        """A parameter's direction as growth sees it: a matrix in balanced coordinates; entries on no path stay."""
        state = self.part.states[index]
        if index not in self._masks or self._masks[index][0] is not state["whitening"]:
            mask, ratio = state["whitening"] != 0, state.get("growth_ratio")
            new = mask.to(d.dtype) if ratio is None else mask * ratio
            known = self._masks.get(index, (None, new))[1]
            self._masks[index] = state["whitening"], new if known is new else known.copy_(new)
        step = self.part.whole(self.one(d, index) * self._masks[index][1], index)
        return step.reshape(step.shape[0], -1)

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """A copy of these tensors, one for each parameter, end to end."""
        return torch.cat([t.reshape(-1) for t in tensors]).to(
            compute_dtype(self.part.params[0].dtype)
        )

    def constant(self, values: tuple[float, ...]) -> Tensor:
        """These numbers on the device; copied there once."""
        if values not in self._constants:
            self._constants[values] = torch.tensor(values, dtype=torch.float64).to(
                self.part.params[0].device, non_blocking=True
            )
        return self._constants[values]

    def keep_up(self, moment_names: Sequence[str]) -> None:
        """Lay out what was measured, loaded or begun since the last step."""
        params, states = self.part.params, self.part.states
        if not self._holds("whitening"):
            # A state from the CPU may hold an outer product; here it is one tensor.
            self.whitening = self._lay(
                "whitening", [whitening_of(s).expand(p.shape) for s, p in zip(states, params)]
            )
            for state in states:
                state.pop("whitening_columns", None)
        for name in moment_names:
            if not self._holds(name):
                known = [
                    state[name] if name in state else torch.zeros_like(p)
                    for state, p in zip(states, params)
                ]
                self.moments[name] = self._lay(name, known)

    def _holds(self, name: str) -> bool:
        """Whether every state still is the view that was put there."""
        views = self._views.get(name)
        return views is not None and all(
            s.get(name) is view for s, view in zip(self.part.states, views)
        )

    def _lay(self, name: str, tensors: Sequence[Tensor]) -> Tensor:
        flat = self.gather(tensors)
        if name in self._views:  # over the last one: who has captured a step reads there
            known = self.whitening if name == "whitening" else self.moments[name]
            flat = known.copy_(flat)
        self._views[name] = self.views(flat)
        for state, view in zip(self.part.states, self._views[name]):
            state[name] = view
        return flat


def _flat(m: Move) -> Flat:
    part = m.part
    if part.flat is None:
        part.flat = Flat(part, [p.numel() for p in part.params], part.params[0].detach())
    part.flat.keep_up(m.moment_names)
    return part.flat

"""Which matrices a net applies again and again to its own results, and the map that one application is.

    h_{t+1} = keep * h_t + gain * relu(W h_t + ...)             or relu(keep * h_t + gain * W h_t + ...)

keep = 0, gain = 1: an RNN layer, a loop over an RNN cell, a stack of tied layers. 1 - a and a: a leaky RNN (CTRNN),
however it is written. What enters from elsewhere does not matter for how states grow. Found by following the state from
one use of W to the next through sums, constant factors and ReLUs; a loop that does more (two matrices in a row, a
learnt factor, W a block of a larger matrix) is not a map of this kind and is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.rules.base import repeats
from pathsgd.network.sharing import parameters_shared_along_paths
from pathsgd.network.tape import Recording, Step, Value, leaves


@dataclass(frozen=True)
class Recurrence:
    """One matrix that is applied to its own results.

    name: the parameter's.
    uses: how often it is applied, one after the other.
    transposed: whether the map is that of W^T.
    keep, gain: numbers, or one for each unit.
    inside: whether what is kept passes through the ReLU too.
    """

    name: str
    uses: int
    transposed: bool = False
    keep: Tensor | float = 0.0
    gain: Tensor | float = 1.0
    inside: bool = False


def recurrences(recording: Recording) -> list[Recurrence]:
    """The matrices that a recorded net applies to its own results, by name."""
    shared = parameters_shared_along_paths(recording)
    found = {}
    for name in sorted(shared.recurrent | shared.general):
        value = recording.parameters[name]
        if len(value.shape) == 2 and value.shape[0] == value.shape[1]:
            found[name] = _layer(recording, name) or _loop(recording, name)
    return [recurrence for recurrence in found.values() if recurrence is not None]


def _layer(recording: Recording, name: str) -> Recurrence | None:
    """A matrix of RNN layers, which apply it themselves."""
    value = recording.parameters[name]
    layers = [s for s in recording.steps if value in s.rule.recurrent(*s.args, **s.kwargs)]
    others = [s for s in recording.steps if value in s.operands and s not in layers]
    return Recurrence(name, max(repeats(s) for s in layers)) if layers and not others else None


# ---- loops -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """One step that applies W: at which place of the recording, to which state, with which result."""

    place: int
    state: Value
    result: Value
    transposed: bool
    through_relu: bool
    """Whether the result is that of the ReLU already."""


def _loop(recording: Recording, name: str) -> Recurrence | None:
    """A matrix that a loop applies: every state but the first must come from the one before in the same way."""
    uses = [
        use
        for place, step in enumerate(recording.steps)
        if (use := _use(recording, name, place, step))
    ]
    maps = [
        _map_between(recording, name, one, two, len(uses)) for one, two in itertools.pairwise(uses)
    ]
    if not maps or any(m is None or not _same(m, maps[0]) for m in maps):
        return None
    return maps[0]


def _use(recording: Recording, name: str, place: int, step: Step) -> Use | None:
    forms = turned(recording, name)
    arguments = [*step.args, *step.kwargs.values()]
    at = next((i for i, a in enumerate(arguments) if isinstance(a, Value) and a in forms), None)
    result = step.outputs[0] if step.outputs else None
    if at is None or result is None or step.operation not in _APPLY:
        return None
    state_at, weight_at, is_turned, through_relu = _APPLY[step.operation]
    if at != weight_at and step.operation in ("matmul", "mv", "mm") and at == 0:  # W h, not h V
        state_at, is_turned = 1, False
    elif at != weight_at:
        return None
    state = arguments[state_at]
    if not isinstance(state, Value) or _units(state) != recording.parameters[name].shape[0]:
        return None
    return Use(place, state, result, forms[arguments[at]] != is_turned, through_relu)


# operation -> places of state and weight, whether h -> h V (so W = V^T), whether the result is a ReLU's
_APPLY = {
    "linear": (0, 1, False, False),
    "matmul": (0, 1, True, False),
    "mm": (0, 1, True, False),
    "mv": (1, 0, False, False),
    "addmm": (1, 2, True, False),
    "rnn_relu_cell": (1, 3, False, True),
}


def turned(recording: Recording, name: str) -> dict[Value, bool]:
    """The values that are this matrix, and whether they are its transpose."""
    known = {recording.parameters[name]: False}
    for step in recording.steps:
        if step.operation in _TURNS and len(step.operands) == 1 and step.operands[0] in known:
            out = step.outputs[0]
            if out is not None and _is_turn(step):
                known[out] = not known[step.operands[0]]
    return known


_TURNS = ("t", "T.__get__", "mT.__get__", "transpose", "swapaxes", "swapdims", "permute")


def _is_turn(step: Step) -> bool:
    axes = [a for a in leaves((step.args[1:], step.kwargs)) if isinstance(a, int)]
    return not axes or (
        sorted(a % 2 for a in axes) == [0, 1] and (step.operation != "permute" or axes[0] % 2 == 1)
    )


def _units(value: Value) -> int:
    """The number of entries of a state of one example; 0 for anything else."""
    size = value.shape.numel()
    return size if value.shape and size in value.shape else 0


# ---- from one use to the next: values as combinations of the state, of W times it, and of one ReLU -------------------

STATE, APPLIED, UNIT = "state", "applied", "unit"
Form = dict[str, Tensor]
"""Coefficients, each of the value's shape or a number: {} is what does not depend on the state."""


class _Unknown(Exception):
    """A step that is none of those that are followed."""


class _Follower:
    """Follows a state through the steps between two uses of W."""

    def __init__(self, one: Use) -> None:
        unit = torch.ones((), dtype=torch.float64)
        self.forms: dict[Value, Form] = {one.state: {STATE: unit}}
        self.forms[one.result] = {UNIT if one.through_relu else APPLIED: unit}
        self.inner: Form | None = {APPLIED: unit} if one.through_relu else None

    def follow(self, step: Step) -> None:
        if not any(v in self.forms for v in step.operands):
            return
        carry = _CARRY.get(step.operation)
        outs = [v for v in step.outputs if v is not None]
        if (
            carry is None
            and step.rule.moves
            and len(step.operands) == 1
            and all(_units(v) for v in outs)
        ):
            carry = _same_form
        if carry is None or len(outs) != 1:
            for v in outs:
                self.forms[v] = {"unknown": torch.ones((), dtype=torch.float64)}
            return
        try:
            self.forms[outs[0]] = carry(self, *step.args, **step.kwargs)
        except (_Unknown, TypeError):
            self.forms[outs[0]] = {"unknown": torch.ones((), dtype=torch.float64)}

    def form(self, operand: Any) -> Form:
        found = self.forms.get(operand, {}) if isinstance(operand, Value) else {}
        if "unknown" in found:
            raise _Unknown
        return found


def _map_between(
    recording: Recording, name: str, one: Use, two: Use, uses: int
) -> Recurrence | None:
    follower = _Follower(one)
    for place, step in enumerate(recording.steps[: two.place]):
        if place != one.place:  # what is kept may be taken from the state before W is applied
            follower.follow(step)
    form = follower.forms.get(two.state, {})
    inner = follower.inner
    if (
        inner is None
        or not set(form) <= {STATE, UNIT}
        or UNIT not in form
        or one.transposed != two.transposed
    ):
        return None
    outside, outer = form.get(STATE), form[UNIT]
    kept, factor = inner.get(STATE), inner[APPLIED]
    if (outside is not None and kept is not None) or bool((outer * factor <= 0).any()):
        return None
    keep = outside if outside is not None else outer * kept if kept is not None else torch.zeros(())
    if bool((keep < 0).any()):
        return None
    units = recording.parameters[name].shape[0]
    return Recurrence(
        name,
        uses,
        one.transposed,
        _plain(keep, units),
        _plain(outer * factor, units),
        inside=kept is not None,
    )


def _plain(coefficient: Tensor, units: int) -> Tensor | float:
    """A number where all units have the same one."""
    flat = coefficient.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else flat.expand(units).clone()


def _same(a: Recurrence, b: Recurrence | None) -> bool:
    if b is None or (a.transposed, a.inside) != (b.transposed, b.inside):
        return False
    pairs = ((a.keep, b.keep), (a.gain, b.gain))
    return all(bool((torch.as_tensor(x) == torch.as_tensor(y)).all()) for x, y in pairs)


def _same_form(follower: _Follower, x: Any, *args: Any, **kwargs: Any) -> Form:
    form = follower.form(x)
    if any(c.dim() for c in form.values()):  # coefficients would have to move, too
        return {key: c.reshape(-1) for key, c in form.items()}
    return form


def _unit(follower: _Follower, x: Any, *args: Any, **kwargs: Any) -> Form:
    form = follower.form(x)
    if set(form) <= {STATE, UNIT} and all(bool((c >= 0).all()) for c in form.values()):
        return form  # states are not negative: nothing is cut
    if follower.inner is not None or not set(form) <= {STATE, APPLIED}:
        raise _Unknown
    follower.inner = form
    return {UNIT: torch.ones((), dtype=torch.float64)}


def _sum(sign: float, first: float = 1.0) -> Callable[..., Form]:
    def carry(follower: _Follower, a: Any, b: Any, *, alpha: float = 1.0) -> Form:
        one, two = follower.form(a), follower.form(b)
        total = {key: first * c for key, c in one.items()}
        for key, c in two.items():
            total[key] = total[key] + sign * alpha * c if key in total else sign * alpha * c
        return {key: c for key, c in total.items() if bool((c != 0).any())}

    return carry


def _product(follower: _Follower, a: Any, b: Any, *, invert: bool = False) -> Form:
    if isinstance(b, Value) and isinstance(a, Value):
        raise _Unknown
    value, constant = (a, b) if isinstance(a, Value) else (b, a)
    factor = torch.as_tensor(constant, dtype=torch.float64).detach()
    factor = factor.reshape(-1) if factor.numel() > 1 else factor.reshape(())
    factor = 1 / factor if invert else factor
    return {key: c * factor for key, c in follower.form(value).items()}


def _quotient(follower: _Follower, a: Any, b: Any) -> Form:
    if not isinstance(a, Value):
        raise _Unknown
    return _product(follower, a, b, invert=True)


def _negative(follower: _Follower, x: Any) -> Form:
    return {key: -c for key, c in follower.form(x).items()}


_CARRY: dict[str, Callable[..., Form]] = {
    "relu": _unit, "clamp": _unit, "clamp_min": _unit, "clip": _unit,
    "add": _sum(1.0), "sub": _sum(-1.0), "subtract": _sum(-1.0), "rsub": _sum(1.0, -1.0),
    "mul": _product, "multiply": _product, "div": _quotient, "divide": _quotient, "true_divide": _quotient,
    "neg": _negative, "negative": _negative, "positive": _same_form, "clone": _same_form, "contiguous": _same_form,
    "to": _same_form, "float": _same_form, "double": _same_form, "dropout": _same_form,
}  # fmt: skip

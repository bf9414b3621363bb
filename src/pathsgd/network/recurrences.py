"""Which matrices a net applies again and again to its own results, and the map that one application is.

    h_{t+1} = keep * h_t + gain * relu(W h_t + ...)             or relu(keep * h_t + gain * W h_t + ...)

keep = 0, gain = 1: an RNN layer, a loop over an RNN cell, a stack of tied layers. 1 - a and a: a leaky RNN (CTRNN),
however it is written. What enters from elsewhere does not matter for how states grow. Found by following the state from
one use of W to the next through sums, constant factors and ReLUs; a loop that does more (two matrices in a row, a
learnt factor, W a block of a larger matrix) is not a map of this kind and is left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.rules.base import RULES, repeats
from pathsgd.network.sharing import parameters_shared_along_paths
from pathsgd.network.tape import Kind, Recording, Step, Value, leaves


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


# ---- Hand-written loops as the recurrent layers that they are.

_FEWEST = 3
"""Shorter loops are not worth a layer."""


@dataclass(frozen=True)
class _Cell:
    """One turn of a loop: the values that enter and leave it, its parameters, and the steps that it is made of."""

    x: Value
    state: Value | None
    out: Value
    w_in: Value
    w_rec: Value
    biases: tuple[Value, ...]
    steps: frozenset[int]

    def is_followed_by(self, other: _Cell) -> bool:
        same = (self.w_in, self.w_rec, self.biases) == (other.w_in, other.w_rec, other.biases)
        return same and other.state is self.out and other.x.shape == self.x.shape


def rolled(recording: Recording) -> Recording:
    """The recording with every loop that is a recurrent layer in the place of its turns."""
    while chains := _Loops(recording).chains():
        recording = _with_layer(
            recording, chains[0]
        )  # which moves the steps that others are made of
    return recording


class _Loops:
    """Looks for turns of loops among the steps of a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.maker = {
            v: k for k, step in enumerate(recording.steps) for v in step.outputs if v is not None
        }
        self.uses = Counter(v for step in recording.steps for v in step.operands)
        self.uses.update((*recording.outputs, *recording.returned))
        # Parameters that are transposed on their way, and whether an odd number of times.
        self.parameter = {
            v: (p, t)
            for name, p in recording.parameters.items()
            for v, t in turned(recording, name).items()
        }

    def chains(self) -> list[list[_Cell]]:
        """Turns that follow one another, long enough and independent of one another."""
        cells = [
            cell for k in range(len(self.recording.steps)) if (cell := self._cell(k)) is not None
        ]
        after = {cell.state: cell for cell in cells if cell.state is not None}
        found = []
        for cell in cells:
            if any(other.is_followed_by(cell) for other in cells if other.out is cell.state):
                continue
            chain = [cell]
            while (following := after.get(chain[-1].out)) is not None and chain[-1].is_followed_by(
                following
            ):
                chain.append(following)
            if len(chain) >= _FEWEST and (cell.state is None) and self._is_independent(chain):
                found.append(chain)
        return found

    def _is_independent(self, chain: list[_Cell]) -> bool:
        """Whether no input of the loop depends on its states, and nothing else needs what happens inside a turn."""
        inside = frozenset().union(*(cell.steps for cell in chain))
        depends = {cell.out for cell in chain}
        for k, step in enumerate(self.recording.steps):
            if k not in inside and any(v in depends for v in step.operands):
                depends.update(v for v in step.outputs if v is not None)
        return not any(cell.x in depends for cell in chain)

    def _cell(self, place: int) -> _Cell | None:
        step = self.recording.steps[place]
        if step.operation == "rnn_relu_cell":
            return self._torch_cell(place, step)
        if step.operation != "relu" or step.kwargs.keys() - {"inplace"}:
            return None
        steps: set[int] = {place}
        terms: list[Step | Value] = []
        waiting = [step.args[0]]
        while waiting:
            value = waiting.pop()
            made = self.maker.get(value, -1)
            source = None if made < 0 or self.uses[value] > 1 else self.recording.steps[made]
            if (
                source is not None
                and source.operation == "add"
                and not source.kwargs
                and len(source.args) == 2
            ):
                waiting += source.args
                steps.add(made)
            elif source is not None and source.operation in _PRODUCTS:
                terms.append(source)
                steps.add(made)
            elif isinstance(value, Value) and self._is_bias(value):
                terms.append(value)
            else:
                return None
        return self._assembled(step.outputs[0], terms, frozenset(steps))

    def _is_bias(self, value: Value) -> bool:
        return value in self.recording.names and len(value.shape) == 1

    def _torch_cell(self, place: int, step: Step) -> _Cell | None:
        x, state, w_in, w_rec, *biases = step.args
        known = [v for v in (w_in, w_rec, *biases) if v is not None]
        if (
            step.kwargs
            or not isinstance(x, Value)
            or any(v not in self.recording.names for v in known)
        ):
            return None
        if not isinstance(state, Value) and not _is_zero(state):
            return None
        out = step.outputs[0]
        assert out is not None
        state = state if isinstance(state, Value) else None
        return _Cell(
            x,
            state,
            out,
            w_in,
            w_rec,
            tuple(b for b in biases if b is not None),
            frozenset([place]),
        )

    def _assembled(
        self, out: Value | None, terms: Sequence[Step | Value], steps: frozenset[int]
    ) -> _Cell | None:
        """A turn from its terms: U x, W h and biases."""
        biases = [term for term in terms if isinstance(term, Value)]
        products = []
        for term in (t for t in terms if isinstance(t, Step)):
            product = self._product(term)
            if product is None:
                return None
            operand, weight, bias = product
            products.append((operand, weight))
            biases += [] if bias is None else [bias]
        if out is None or len(products) != 2 or len(biases) > 2 or len(set(biases)) < len(biases):
            return None
        hidden = out.shape[-1]
        square = [(o, w) for o, w in products if w.shape[0] == w.shape[1] == hidden]
        for operand, w_rec in square:
            other, w_in = products[1 - products.index((operand, w_rec))]
            state = operand if isinstance(operand, Value) else None
            if not (
                _is_relu_of(self.recording, self.maker, state)
                or (state is None and _is_zero(operand))
            ):
                continue
            if (
                isinstance(other, Value)
                and w_in is not w_rec
                and other.shape.numel() == other.shape[-1]
            ):
                order = sorted(biases, key=lambda b: self.recording.names[b])
                return _Cell(other, state, out, w_in, w_rec, tuple(order), steps)
        return None

    def _product(self, step: Step) -> tuple[Any, Value, Value | None] | None:
        """What a step multiplies by which parameter, as rows times its transpose, and the bias that it adds."""
        arguments = [*step.args, *step.kwargs.values()]
        if not all(a in self.parameter or not isinstance(a, Value) for a in arguments[1:]):
            return None
        weight, is_turned = self.parameter.get(arguments[1], (None, False))
        bias = arguments[2] if len(arguments) > 2 else None
        if weight is None or len(weight.shape) != 2 or is_turned == (step.operation == "linear"):
            return None
        if bias is not None and not (isinstance(bias, Value) and self._is_bias(bias)):
            return None
        return arguments[0], weight, bias


_PRODUCTS = ("linear", "matmul", "mm")


def _is_zero(state: Any) -> bool:
    return state is None or (isinstance(state, Tensor) and not bool(state.any()))


def _is_relu_of(recording: Recording, maker: dict[Value, int], state: Value | None) -> bool:
    """Whether a value is what a ReLU made."""
    return (
        state is not None and state in maker and recording.steps[maker[state]].operation == "relu"
    )


# ---- putting the layer in ------------------------------------------------------------------------------------------


def _with_layer(recording: Recording, chain: list[_Cell]) -> Recording:
    inside = frozenset().union(*(cell.steps for cell in chain))
    outs = {cell.out for cell in chain}
    depends, before, after = set(outs), [], []
    for k, step in enumerate(recording.steps):
        if k in inside:
            continue
        if any(v in depends for v in step.operands):
            depends.update(v for v in step.outputs if v is not None)
            after.append(step)
        else:
            before.append(step)
    used = {v for step in after for v in step.operands} | {*recording.outputs, *recording.returned}
    needed = {*recording.outputs, *recording.returned}
    kept: list[Step] = []
    for step in reversed([*before, *_layer_steps(recording, chain, used), *after]):
        if any(
            v in needed for v in step.outputs if v is not None
        ):  # what only picked an input out is not
            needed.update(step.operands)
            kept.append(step)
    return replace(recording, steps=kept[::-1])


def _layer_steps(recording: Recording, chain: list[_Cell], used: set[Value]) -> list[Step]:
    """Steps that compute all states of the loop at once, and pick out those that are used."""
    first, where = chain[0], recording.steps[min(chain[0].steps)].where
    steps: list[Step] = []

    def add(operation: str, args: tuple[Any, ...], *outputs: Value | None) -> None:
        steps.append(Step(operation, RULES[operation], args, {}, outputs, where))

    def value(shape: Sequence[int], like: Value, kind: Kind) -> Value:
        return Value(kind, torch.Size(shape), like.dtype)

    length, hidden, features = len(chain), first.out.shape[-1], first.x.shape[-1]
    x, batch_first = _sequence(recording, chain), False
    if x is None:
        kinds = {cell.x.kind for cell in chain}
        x = value(
            (length, *first.x.shape), first.x, kinds.pop() if len(kinds) == 1 else Kind.ACTIVATION
        )
        add("stack", ([cell.x for cell in chain],), x)
    elif x.shape[0] != length:
        batch_first = True
    if len(x.shape) != 3:
        flat = value((length, 1, features), x, x.kind)
        add("reshape", (x, (length, 1, features)), flat)
        x = flat
    states = value((*x.shape[:2], hidden), first.out, Kind.ACTIVATION)
    last = value((1, 1, hidden), first.out, Kind.ACTIVATION)
    weights = [first.w_in, first.w_rec, *first.biases]
    add(
        "rnn_relu",
        (x, None, weights, bool(first.biases), 1, 0.0, False, False, batch_first),
        states,
        last,
    )
    for k, cell in enumerate(chain):
        if cell.out in used:
            at: Any = (slice(None), k) if batch_first else k
            picked = (
                cell.out
                if len(cell.out.shape) == 2
                else value((1, hidden), cell.out, Kind.ACTIVATION)
            )
            add("__getitem__", (states, at), picked)
            if picked is not cell.out:
                add("reshape", (picked, tuple(cell.out.shape)), cell.out)
    return steps


def _sequence(recording: Recording, chain: list[_Cell]) -> Value | None:
    """The value whose steps in time the turns read one after the other, if there is one."""
    maker = {v: step for step in recording.steps for v in step.outputs if v is not None}
    found: Value | None = None
    for k, cell in enumerate(chain):
        picked = _picked(maker.get(cell.x), cell.x, k)
        if picked is None:
            return None
        whole, time = picked
        if whole.shape[time] != len(chain) or (found is not None and whole is not found):
            return None
        found = whole
    return found


def _picked(step: Step | None, x: Value, k: int) -> tuple[Value, int] | None:
    """The value of which a step picks out the k-th entry along the first dimension or the second, and which it is."""
    if step is None or step.kwargs or len(step.args) != 2:
        return None
    whole, at = step.args
    if (
        step.operation == "unbind"
        and at in (0, 1)
        and k < len(step.outputs)
        and step.outputs[k] is x
    ):
        return whole, at
    if step.operation == "__getitem__" and (at == k or at == (slice(None), k)):
        return whole, 0 if at == k else 1
    return None

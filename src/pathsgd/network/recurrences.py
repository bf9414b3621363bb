"""The matrices that a net applies again and again to its own results, however its loop is written.

    h_{t+1} = keep * h_t + gain * relu(W h_t + ...)         or relu(keep * h_t + gain * W h_t + ...)

keep = 0, gain = 1: an RNN layer, a loop over an RNN cell, a stack of tied layers. keep = 1 - a,
gain = a: a leaky RNN (CTRNN). What else enters does not matter for how states grow. A loop that
does more (two matrices in a row, a learnt factor, a block of a larger matrix) has no map of this
kind.

A loop with the map of a recurrent layer becomes a step of such a layer (`rolled`): then path sums
take one sweep over time, and kappa2 and plain nets have closed forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.forms import Applied, Form, Forms, Term, is_zero, units_in
from pathsgd.network.rules.base import RULES, repeats
from pathsgd.network.sharing import parameters_shared_along_paths
from pathsgd.network.tape import Kind, Recording, Step, Value


@dataclass(frozen=True)
class Recurrence:
    """A matrix that is applied to its own results.

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
    names = [
        name
        for name in sorted(shared.recurrent | shared.general)
        if len(shape := recording.parameters[name].shape) == 2 and shape[0] == shape[1]
    ]
    if not names:
        return []
    forms = Forms(recording)
    found = (_layer(recording, name) or _loop(recording, forms, name) for name in names)
    return [recurrence for recurrence in found if recurrence is not None]


def _layer(recording: Recording, name: str) -> Recurrence | None:
    """A matrix of RNN layers, which apply it themselves."""
    value = recording.parameters[name]
    layers = [s for s in recording.steps if value in s.rule.recurrent(*s.args, **s.kwargs)]
    others = [s for s in recording.steps if value in s.operands and s not in layers]
    return Recurrence(name, max(repeats(s) for s in layers)) if layers and not others else None


# ---- the map of a loop ---------------------------------------------------------------------------


def _loop(recording: Recording, forms: Forms, name: str) -> Recurrence | None:
    """A matrix of a loop: every state but the first comes from the one before by the same map."""
    units = recording.parameters[name].shape[0]
    uses = [
        use
        for use in forms.products[recording.parameters[name]]
        if isinstance(use.operand, Value) and units_in(use.operand) == units
    ]
    latest = _latest_states(recording, [use.operand for use in uses])
    maps = [
        _map(forms, latest, k, one, two) for k, (one, two) in enumerate(itertools.pairwise(uses))
    ]
    if not maps or maps[0] is None or not all(m is not None and _same(m, maps[0]) for m in maps):
        return None
    keep, gain, inside = maps[0]
    return Recurrence(
        name, len(uses), uses[0].transposed, _number(keep, units), _number(gain, units), inside
    )


def _latest_states(recording: Recording, states: list[Value]) -> dict[Value, int]:
    """For each value, the number of the last state that it depends on."""
    number = {state: k for k, state in enumerate(states)}
    latest: dict[Value, int] = {}
    for step in recording.steps:
        known = max((number.get(v, latest.get(v, -1)) for v in step.operands), default=-1)
        latest.update(dict.fromkeys(step.made, known))
    return latest


_Map = tuple[Tensor, Tensor, bool]
"""keep, gain, inside."""


def _map(forms: Forms, latest: dict[Value, int], k: int, one: Applied, two: Applied) -> _Map | None:
    """The map from the state of one use to that of the next; None if it is another kind."""

    def depending(form: Form) -> Form:
        return {
            term: c
            for term, c in form.items()
            if term is one.operand or latest.get(_value(term), -1) >= k or term is one
        }

    outer = depending(forms.definitions.get(two.operand, {}))
    outside = outer.pop(one.operand, None)
    if len(outer) != 1 or one.transposed != two.transposed:
        return None
    ((unit, factor),) = outer.items()
    inner = depending(forms.inner.get(_value(unit), {}))  # type: ignore[arg-type]
    kept, applied = inner.pop(one.operand, None), inner.pop(one, None)
    if applied is None or inner or (outside is not None and kept is not None):
        return None
    zero = torch.zeros(())
    keep = outside if outside is not None else zero if kept is None else factor * kept
    gain = factor * applied
    if bool((gain <= 0).any()) or bool((keep < 0).any()):
        return None
    return keep, gain, kept is not None


def _value(term: Term) -> Any:
    """The value whose dependence decides about that of a term."""
    return term.operand if isinstance(term, Applied) else term


def _same(a: _Map, b: _Map) -> bool:
    return a[2] == b[2] and all(bool((x == y).all()) for x, y in zip(a[:2], b[:2]))


def _number(coefficient: Tensor, units: int) -> Tensor | float:
    """A number where all units have the same one."""
    flat = coefficient.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else flat.expand(units).clone()


# ---- loops as recurrent layers -------------------------------------------------------------------

_FEWEST = 3
"""Shorter loops are not worth a layer."""
_LAYER_UNITS = frozenset({"relu", "rnn_relu_cell"})
"""Loops whose units are written in another way (clamp) are measured as they are written."""


@dataclass(frozen=True)
class _Turn:
    """h_t = relu(W_in x_t + W_rec h_{t-1} + biases); state: h_{t-1}, None for zero; out: h_t."""

    x: Value
    state: Value | None
    out: Value
    weights: tuple[Value, ...]
    """W_in, W_rec and the biases."""


def rolled(recording: Recording) -> Recording:
    """The recording with a step of a recurrent layer in the place of every loop that is one."""
    while (chain := _first_chain(recording)) is not None:
        recording = _with_layer(recording, chain)
    return recording


def _first_chain(recording: Recording) -> list[_Turn] | None:
    """The turns of a loop from a zero state whose inputs do not depend on its states."""
    forms = Forms(recording)
    turns = [turn for step in recording.steps for turn in _turns(recording, forms, step)]
    following = {(turn.state, turn.weights): turn for turn in turns}
    for turn in turns:
        chain = [turn]
        while (after := following.get((chain[-1].out, turn.weights))) is not None:
            if after.x.shape != turn.x.shape:
                break
            chain.append(after)
        if turn.state is None and len(chain) >= _FEWEST:
            dependent = _dependents(recording, {t.out for t in chain})
            if not any(t.x in dependent for t in chain):
                return chain
    return None


def _turns(recording: Recording, forms: Forms, step: Step) -> Iterator[_Turn]:
    """The ways to read a step as a turn of a loop: which matrix is applied to the state."""
    unit = step.outputs[0] if step.operation in _LAYER_UNITS else None
    if unit is None or unit not in forms.inner:
        return
    terms = forms.inner[unit]
    products = [t for t in terms if isinstance(t, Applied) and not t.transposed]
    biases = [t for t in terms if isinstance(t, Value) and t in forms.parameters]
    is_sum = all(c.dim() == 0 and c == 1 for c in terms.values())
    if not is_sum or len(products) != 2 or len(terms) != 2 + len(biases) or len(biases) > 2:
        return
    if any(len(bias.shape) != 1 for bias in biases):
        return
    if step.operation == "relu":  # a cell's biases have an order of their own
        biases.sort(key=lambda bias: recording.names[bias])
    hidden = unit.shape[-1]
    for product, other in (products, products[::-1]):
        state, x, w_rec = product.operand, other.operand, product.weight
        is_state = isinstance(state, Value) or is_zero(state)
        if w_rec.shape != (hidden, hidden) or not is_state or other.weight is w_rec:
            continue
        if isinstance(x, Value) and units_in(x) == x.shape[-1]:
            state = state if isinstance(state, Value) else None
            yield _Turn(x, state, unit, (other.weight, w_rec, *biases))


def _dependents(recording: Recording, values: set[Value]) -> set[Value]:
    """These values and all that depend on them."""
    found = set(values)
    for step in recording.steps:
        if any(v in found for v in step.operands):
            found.update(step.made)
    return found


def _with_layer(recording: Recording, chain: list[_Turn]) -> Recording:
    outs = {turn.out for turn in chain}
    dependent = _dependents(recording, outs)
    steps = [s for s in recording.steps if outs.isdisjoint(s.made)]
    before = [s for s in steps if not any(v in dependent for v in s.operands)]
    after = [s for s in steps if any(v in dependent for v in s.operands)]
    after = _needed(after, {*recording.outputs, *recording.returned})
    used = {v for s in after for v in s.operands} | {*recording.outputs, *recording.returned}
    steps = [*before, *_layer_steps(recording, chain, used), *after]
    return replace(recording, steps=_needed(steps, {*recording.outputs, *recording.returned}))


def _needed(steps: list[Step], values: set[Value]) -> list[Step]:
    """The steps that these values depend on."""
    kept: list[Step] = []
    for step in reversed(steps):
        if not values.isdisjoint(step.made):
            values.update(step.operands)
            kept.append(step)
    return kept[::-1]


def _layer_steps(recording: Recording, chain: list[_Turn], used: set[Value]) -> list[Step]:
    """Steps that compute all states of the loop at once, and pick out those that are used."""
    makers = {v: step for step in recording.steps for v in step.made}
    first, where = chain[0], makers[chain[0].out].where
    steps: list[Step] = []

    def add(operation: str, args: tuple[Any, ...], *outputs: Value | None) -> None:
        steps.append(Step(operation, RULES[operation], args, {}, outputs, where))

    def value(shape: Sequence[int], kind: Kind) -> Value:
        return Value(kind, torch.Size(shape), first.out.dtype)

    length, hidden, features = len(chain), first.out.shape[-1], first.x.shape[-1]
    x, batch_first = _sequence(makers, [turn.x for turn in chain]), False
    if x is None:
        kinds = {turn.x.kind for turn in chain}
        kind = kinds.pop() if len(kinds) == 1 else Kind.ACTIVATION
        x = value((length, *first.x.shape), kind)
        add("stack", ([turn.x for turn in chain],), x)
    elif x.shape[0] != length:
        batch_first = True
    if len(x.shape) != 3:
        flat = value((length, 1, features), x.kind)
        add("reshape", (x, (length, 1, features)), flat)
        x = flat
    states = value((*x.shape[:2], hidden), Kind.ACTIVATION)
    last = value((1, 1, hidden), Kind.ACTIVATION)
    options = (len(first.weights) > 2, 1, 0.0, False, False, batch_first)
    add("rnn_relu", (x, None, list(first.weights), *options), states, last)
    for k, out in enumerate(turn.out for turn in chain):
        if out in used:
            is_row = len(out.shape) == 2
            picked = out if is_row else value((1, hidden), Kind.ACTIVATION)
            add("__getitem__", (states, (slice(None), k) if batch_first else k), picked)
            if not is_row:
                add("reshape", (picked, tuple(out.shape)), out)
    return steps


def _sequence(makers: dict[Value, Step], inputs: list[Value]) -> Value | None:
    """The value whose steps in time are these, one after the other, if there is one."""
    picked = [_picked(makers.get(x), x, k) for k, x in enumerate(inputs)]
    if any(p is None or p != picked[0] for p in picked) or picked[0] is None:
        return None
    whole, time = picked[0]
    return whole if whole.shape[time] == len(inputs) else None


def _picked(step: Step | None, x: Value, k: int) -> tuple[Value, int] | None:
    """The value whose k-th entry along dimension 0 or 1 a step picks out, and the dimension."""
    if step is None or step.kwargs or len(step.args) != 2:
        return None
    whole, at = step.args
    if step.operation == "unbind" and at in (0, 1):
        return (whole, at) if k < len(step.outputs) and step.outputs[k] is x else None
    if step.operation == "__getitem__" and (at == k or at == (slice(None), k)):
        return whole, 0 if at == k else 1
    return None

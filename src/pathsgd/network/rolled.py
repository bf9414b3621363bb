"""Hand-written loops as the recurrent layers that they are.

    h_t = relu(U x_t + W h_{t-1} + biases),  t = 1 .. T        written out, or by RNN cells

are T steps of a recording, and one step of a recurrent layer. What is known of the layer then holds for the loop: one
sweep over time instead of T operations, kappa2 in closed form, closed forms for plain nets. A loop that does anything
else (another matrix, a factor, an input that depends on a state) stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.recurrences import turned
from pathsgd.network.rules.base import RULES
from pathsgd.network.tape import Kind, Recording, Step, Value

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
    for step in reversed([*before, *_layer(recording, chain, used), *after]):
        if any(
            v in needed for v in step.outputs if v is not None
        ):  # what only picked an input out is not
            needed.update(step.operands)
            kept.append(step)
    return replace(recording, steps=kept[::-1])


def _layer(recording: Recording, chain: list[_Cell], used: set[Value]) -> list[Step]:
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

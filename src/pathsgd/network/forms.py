"""Values of a recording as sums: of matrices applied to states, of units, and of what enters.

    value = sum over terms of coefficient * term            unit = relu(its inner sum)

Followed through sums, constant factors and ReLUs. What any other operation returns is a term of its
own. This is how recurrences are found (recurrences.py), however a loop is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.network.tape import Kind, Recording, Step, Value, leaves

_MOST_TERMS = 8
"""A longer sum is a term of its own: a sum over all turns of a loop is no turn."""
_ONE = torch.ones((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Applied:
    """W x, or W^T x: a parameter applied to a value, or to a constant (a state of zeros)."""

    weight: Value
    transposed: bool
    operand: Any


Term = Value | Applied | str
"""A value, a product, or "constant" for numbers other than zero."""
Form = dict[Term, Tensor]
"""The coefficient of each term: one number, or one for each unit."""


class _Opaque(Exception):
    """An operation that is not followed."""


class Forms:
    """The forms of all values of a recording.

    definitions: the form of each value that is not a term of its own.
    inner: for each unit, the form that its ReLU is applied to.
    products: the products of each parameter with values, in their order.
    """

    def __init__(self, recording: Recording) -> None:
        self.definitions: dict[Value, Form] = {}
        self.inner: dict[Value, Form] = {}
        self.products: dict[Value, list[Applied]] = defaultdict(list)
        self.parameters = set(recording.parameters.values())
        self._turned = _turned(recording)
        found = [(step, self._applied(step)) for step in recording.steps]
        # What a square matrix is applied to is a term of its own: the state of a recurrence.
        square = [a for _, every in found for a in every if a.weight.shape[0] == a.weight.shape[1]]
        self.states = {a.operand for a in square if isinstance(a.operand, Value)}
        for step, applied in found:
            self._follow(step, applied)
            for a in applied:
                self.products[a.weight].append(a)

    def of(self, operand: Any) -> Form:
        """The form of an operand of a step."""
        if isinstance(operand, Value):
            if operand in self.states:
                return {operand: _ONE}
            return self.definitions.get(operand, {operand: _ONE})
        return {} if is_zero(operand) else {"constant": _ONE}

    def _follow(self, step: Step, applied: list[Applied]) -> None:
        if len(step.made) != 1:
            return
        (out,) = step.made
        try:
            form = self._form(step, applied, out)
        except (_Opaque, TypeError):
            return
        if len(form) <= _MOST_TERMS:
            self.definitions[out] = form

    def _form(self, step: Step, applied: list[Applied], out: Value) -> Form:
        args, kwargs = step.args, step.kwargs
        products: Form = dict.fromkeys(applied, _ONE)
        if step.operation == "rnn_relu_cell":
            self.inner[out] = _added(products, *map(self.of, args[4:]))
            return {out: _ONE}
        if step.operation in _UNITS:
            return self._unit(self.of(args[0]), out)
        if applied and step.operation == "linear":
            return _added(products, *map(self.of, [*args, *kwargs.values()][2:]))
        if applied and step.operation == "addmm" and not kwargs:
            return _added(self.of(args[0]), products)
        if applied and step.operation in ("matmul", "mm", "mv"):
            return products
        if step.operation in _CARRY:
            return _CARRY[step.operation](self, *args, **kwargs)
        is_move = step.rule.moves and len(step.operands) == 1 and out.kind is not Kind.WEIGHT
        if is_move and units_in(out) == units_in(step.operands[0]) > 0:
            # Coefficients of several units would have to move as well; a state is one row.
            return {t: c.reshape(-1) if c.dim() else c for t, c in self.of(args[0]).items()}
        raise _Opaque

    def _unit(self, form: Form, out: Value) -> Form:
        is_nonnegative = all(t in self.states or t in self.inner for t in form)
        if is_nonnegative and form and all(bool((c >= 0).all()) for c in form.values()):
            return form  # the ReLU changes nothing
        self.inner[out] = form
        return {out: _ONE}

    def _applied(self, step: Step) -> list[Applied]:
        """The products of parameters with something in a step."""
        places = _PRODUCTS.get(step.operation, ())
        arguments = [*step.args, *step.kwargs.values()]
        found = []
        for operand, weight, is_transposed in places:
            known = self._turned.get(arguments[weight]) if _is_value(arguments[weight]) else None
            if known is not None and arguments[operand] not in self._turned:
                parameter, turned = known
                found.append(Applied(parameter, turned != is_transposed, arguments[operand]))
        return found


def _is_value(a: Any) -> bool:
    return isinstance(a, Value)


# For each operation: the positions of operand and matrix, and whether it is x V, so that W = V^T.
_PRODUCTS = {
    "linear": [(0, 1, False)],
    "matmul": [(0, 1, True), (1, 0, False)],
    "mm": [(0, 1, True), (1, 0, False)],
    "mv": [(1, 0, False)],
    "addmm": [(1, 2, True)],
    "rnn_relu_cell": [(0, 2, False), (1, 3, False)],
}
_UNITS = frozenset({"relu", "clamp", "clamp_min", "clip"})
_TURNS = ("t", "T.__get__", "mT.__get__", "transpose", "swapaxes", "swapdims", "permute")


def _turned(recording: Recording) -> dict[Value, tuple[Value, bool]]:
    """The values that are matrices of parameters, and whether they are transposed."""
    known = {v: (v, False) for v in recording.parameters.values() if len(v.shape) == 2}
    for step in recording.steps:
        if step.operation in _TURNS and len(step.operands) == 1 and step.operands[0] in known:
            axes = [a for a in leaves((step.args[1:], step.kwargs)) if isinstance(a, int)]
            is_both = sorted(a % 2 for a in axes) == [0, 1]
            is_turn = is_both and (step.operation != "permute" or axes[0] % 2 == 1)
            if step.outputs[0] is not None and (is_turn or not axes):
                parameter, turned = known[step.operands[0]]
                known[step.outputs[0]] = (parameter, not turned)
    return known


def units_in(value: Value) -> int:
    """The number of entries of a state of one example; 0 for anything else."""
    size = value.shape.numel()
    return size if value.shape and size in value.shape else 0


def is_zero(operand: Any) -> bool:
    """Whether a constant adds no paths."""
    if isinstance(operand, Tensor):
        return not bool(operand.any())
    return operand is None or operand == 0


# ---- how operations combine forms ----------------------------------------------------------------


def _added(*forms: Form) -> Form:
    total: Form = {}
    for form in forms:
        for term, c in form.items():
            total[term] = total[term] + c if term in total else c
    return {term: c for term, c in total.items() if bool((c != 0).any())}


def _scaled(form: Form, factor: float | Tensor) -> Form:
    return {term: c * factor for term, c in form.items()}


def _sum(sign: float, first: float = 1.0) -> Callable[..., Form]:
    def carry(forms: Forms, a: Any, b: Any, *, alpha: float = 1.0) -> Form:
        return _added(_scaled(forms.of(a), first), _scaled(forms.of(b), sign * alpha))

    return carry


def _product(forms: Forms, a: Any, b: Any, *, invert: bool = False) -> Form:
    if _is_value(a) == _is_value(b) or (invert and _is_value(b)):
        raise _Opaque
    value, constant = (a, b) if _is_value(a) else (b, a)
    factor = torch.as_tensor(constant, dtype=torch.float64).detach()
    factor = factor.reshape(-1) if factor.numel() > 1 else factor.reshape(())
    return _scaled(forms.of(value), 1 / factor if invert else factor)


def _quotient(forms: Forms, a: Any, b: Any) -> Form:
    return _product(forms, a, b, invert=True)


def _same(forms: Forms, x: Any, *args: Any, **kwargs: Any) -> Form:
    return forms.of(x)


def _table(*rows: tuple[Iterable[str], Callable[..., Form]]) -> dict[str, Callable[..., Form]]:
    return {name: carry for names, carry in rows for name in names}


_CARRY = _table(
    (["add"], _sum(1.0)),
    (["sub", "subtract"], _sum(-1.0)),
    (["rsub"], _sum(1.0, -1.0)),
    (["mul", "multiply"], _product),
    (["div", "divide", "true_divide"], _quotient),
    (["neg", "negative"], lambda forms, x: _scaled(forms.of(x), -1.0)),
    (["positive", "clone", "contiguous", "to", "float", "double", "dropout"], _same),
)

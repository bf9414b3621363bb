"""Does a model treat slices of its input separately? Of the usual operations it is known without counting paths.

Two recordings, with one slice and with two, have to be the same steps between the same values. The slices then lie
along one dimension of each value that depends on the input: of size 1 in the first recording, 2 in the second. An
operation that works entry by entry, or on each row, or picks out along another dimension, keeps them apart.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from pathsgd.network.rules.base import repeats
from pathsgd.network.tape import Recording, Step, Value, leaves

_BY_ENTRIES = frozenset({"relu", "add", "sub", "abs", "leaky_relu", "clone", "neg", "dropout"})
_BY_ROWS = frozenset({"linear", "matmul", "mm", "rnn_relu_cell"})
_BY_SEQUENCES = frozenset({"rnn_relu"})
_PICKS = frozenset({"__getitem__", "unbind", "select"})
_Twin = tuple[Value, int | None]
"""The value of the second recording that a value of the first is, and the dimension along which slices lie.

Counted from the last, which is -1; None where there are no slices.
"""


class _Mixed(Exception):
    """Shapes do not differ as one slice from two."""


def are_certainly_separate(one: Recording, two: Recording) -> bool:
    """Whether slices are kept apart by every step; False where that is not known."""
    twins: dict[Value, _Twin] = {}
    try:
        twins.update({v: _twin(v, w) for v, w in zip(one.inputs, two.inputs)})
        twins.update({v: _twin(v, two.parameters.get(name)) for name, v in one.parameters.items()})
        for s, t in zip(one.steps, two.steps):
            if not _is_same(s, t, twins):
                return False
            made = {v: _twin(v, w) for v, w in zip(s.outputs, t.outputs) if v is not None}
            sliced = [v for v in s.operands if twins[v][1] is not None]
            if not _keeps_apart(
                s, {twins[v][1] for v in sliced}, {dim for _, dim in made.values()}, sliced
            ):
                return False
            twins.update(made)
    except _Mixed:
        return False
    same_outputs = [twins[v][0] for v in one.outputs if v in twins] == two.outputs
    return len(one.steps) == len(two.steps) and same_outputs


def _twin(v: Value, w: Value | None) -> _Twin:
    if w is None or len(v.shape) != len(w.shape):
        raise _Mixed
    if v.shape == w.shape:
        return w, None
    grown = [d for d, (a, b) in enumerate(zip(v.shape, w.shape)) if a != b]
    if len(grown) > 1 or (v.shape[grown[0]], w.shape[grown[0]]) != (1, 2):
        raise _Mixed
    return w, grown[0] - len(v.shape)


def _is_same(s: Step, t: Step, twins: dict[Value, _Twin]) -> bool:
    """The same operation on the same values and constants; a constant may be repeated for each slice."""
    if s.operation != t.operation or len(s.outputs) != len(t.outputs) or repeats(s) != repeats(t):
        return False
    left, right = leaves((s.args, s.kwargs)), leaves((t.args, t.kwargs))
    return len(left) == len(right) and all(map(partial(_fits, twins), left, right))


def _fits(twins: dict[Value, _Twin], a: Any, b: Any) -> bool:
    if isinstance(a, Value):
        return a in twins and twins[a][0] is b
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    same_size = a.dim() == b.dim() and all(m in (n, 1) for m, n in zip(a.shape, b.shape))
    return a.is_floating_point() and same_size and bool((a == b).all())


def _keeps_apart(
    step: Step, into: set[int | None], out: set[int | None], sliced: list[Value]
) -> bool:
    """into, out: where slices lie in the operands that have them, and in the results. sliced: those operands."""
    if out == {None} and not into:
        return True  # of weights and constants alone
    if None in out or len(into) > 1:
        return False
    if step.operation in _BY_ENTRIES:
        return len(out) == 1 and into <= out
    if step.operation in _BY_ROWS:
        return len(out) == 1 and into <= out and -1 not in out
    if step.operation in _BY_SEQUENCES:  # as many steps as before: what has grown is the batch
        return sliced == step.operands[:1]
    return step.operation in _PICKS and len(out) == 1 and len(into) == 1

"""Recordings of one example: gamma^2 belongs to the network, not to a batch.

The batch dimension is the first one along which the model treats slices separately: if it is
resized, the steps stay the same, and the outputs and the number of paths grow in proportion. Inputs
may be nested; every tensor in them may have a batch dimension. Without one (an unbatched input) the
inputs are used as they are. Where rows differ in structure (a packed batch, masks, lengths),
gamma^2 is averaged over the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.inputs import Call, is_packed, is_sparse, map_tensors, numbered_tensors
from pathsgd.network.rules.base import examples, repeats
from pathsgd.network.squared import Evaluation
from pathsgd.network.tape import Recording, Step, Value, leaves

FREE_CHOICES = 5
"""The number of inputs that may each have a batch dimension of their own: at most 3^5 choices."""

Dims = tuple[int | None, ...]
"""The batch dimension of each input; None for inputs without one."""


def one_example(record: Callable[[Call], Recording], call: Call) -> Recording | None:
    """The recording with the batch dimension at size 1, or None if there is no batch dimension.

    record: makes a recording from a call as it is.
    """
    if is_packed(call):
        return None  # recorded as it is, and averaged
    tensors = numbered_tensors(call)
    for dims in _candidates(tensors):
        try:
            one, two = (record(_resized(call, dims, size)) for size in (1, 2))
        except (ValueError, UnsupportedOperation):
            continue  # the model takes no other size here; real errors show at the original sizes
        if not _treats_slices_separately(one, two):
            continue
        if not _is_like_every_row(one, tensors, dims):
            one = record(call)
            one.rows = next(t.shape[d] for t, d in zip(tensors, dims) if d is not None)
        return one
    return None


def _is_like_every_row(one: Recording, tensors: list[Tensor], dims: Dims) -> bool:
    """Whether all rows have the structure of the first."""
    structure = ((tensors[k], dims[k]) for k in one.structural)
    return all(d is None or bool((t == t.narrow(d, 0, 1)).all()) for t, d in structure)


def _candidates(tensors: list[Tensor]) -> Iterator[Dims]:
    """Choices of one dimension for each tensor, equal in size, most likely first."""
    # Many tensors (the states of many layers) choose together by shape: fewer choices.
    many = len(tensors) > FREE_CHOICES
    owners: list[Any] = [t.shape for t in tensors] if many else list(range(len(tensors)))
    options = {
        owner: (*range(0 if is_sparse(t) else min(2, t.dim())), None)
        for owner, t in zip(owners, tensors)
    }
    choices = (dict(zip(options, chosen)) for chosen in itertools.product(*options.values()))
    every = [tuple(choice[owner] for owner in owners) for choice in choices]
    for dims in sorted(every, key=_likelihood):
        sizes = {t.shape[d] for t, d in zip(tensors, dims) if d is not None}
        if len(sizes) == 1:
            yield dims


def _likelihood(dims: Dims) -> tuple[Any, ...]:
    return dims.count(None), len(set(dims)), [2 if d is None else d for d in dims]


def _resized(call: Call, dims: Dims, size: int) -> Call:
    remaining = iter(dims)

    def resize(a: Tensor) -> Tensor:
        dim = next(remaining)
        return a if dim is None else a.narrow(dim, 0, 1).repeat_interleave(size, dim)

    return map_tensors(resize, call)


def _treats_slices_separately(one: Recording, two: Recording) -> bool:
    if [v.shape.numel() for v in two.outputs] != [2 * v.shape.numel() for v in one.outputs]:
        return False
    if are_certainly_separate(one, two):
        return True
    if [_signature(s) for s in one.steps] != [_signature(s) for s in two.steps]:
        return False
    # A convolution or a shift in time mixes slices: then there are more than twice the paths.
    try:
        first, second = map(_log_paths, (one, two))
    except (IndexError, RuntimeError):
        return False  # constants (indices, lengths) that do not fit this size
    return first == -math.inf or abs(second - first - math.log(2)) < 1e-9 * (1 + abs(first))


def _signature(step: Step) -> tuple[Any, ...]:
    """What must not change with the batch size; `repeats` tells time from batch."""
    return step.operation, step.where, repeats(step)


def _log_paths(recording: Recording) -> float:
    """log of gamma^2 with every weight one: the number of paths, up to fixed weights."""
    one = torch.ones((), dtype=torch.float64)
    ones = {name: one.expand(value.shape) for name, value in recording.parameters.items()}
    total = Evaluation(recording, ones, derivative=None).total
    return float(total.log()) + math.log(examples(recording))


# ---- slices that are certainly separate, without counting paths ----------------------------------

_Twin = tuple[Value, int | None]
"""The value of the second recording, and the dimension of the slices counted from the end."""


class _Mixed(Exception):
    """Shapes do not differ as one slice from two."""


def are_certainly_separate(one: Recording, two: Recording) -> bool:
    """Whether every step keeps slices apart; False where that is not known.

    Both recordings must have the same steps between the same values. Slices lie along one dimension
    of each value that depends on the input: of size 1 in the first recording, 2 in the second.
    """
    twins: dict[Value, _Twin] = {}
    try:
        twins.update({v: _twin(v, w) for v, w in zip(one.inputs, two.inputs)})
        twins.update({v: _twin(v, two.parameters.get(name)) for name, v in one.parameters.items()})
        for s, t in zip(one.steps, two.steps):
            if not _is_same(s, t, twins):
                return False
            made = {v: _twin(v, w) for v, w in zip(s.outputs, t.outputs) if v is not None}
            if not _keeps_apart(s, twins, {dim for _, dim in made.values()}):
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
    """The same operation on the same values; a constant may be repeated for each slice."""
    if s.operation != t.operation or len(s.outputs) != len(t.outputs) or repeats(s) != repeats(t):
        return False
    left, right = leaves((s.args, s.kwargs)), leaves((t.args, t.kwargs))
    return len(left) == len(right) and all(_fits(twins, a, b) for a, b in zip(left, right))


def _fits(twins: dict[Value, _Twin], a: Any, b: Any) -> bool:
    if isinstance(a, Value):
        return a in twins and twins[a][0] is b
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    same_size = a.dim() == b.dim() and all(m in (n, 1) for m, n in zip(a.shape, b.shape))
    return a.is_floating_point() and same_size and bool((a == b).all())


def _keeps_apart(step: Step, twins: dict[Value, _Twin], results: set[int | None]) -> bool:
    """results: where slices lie in the results."""
    sliced = [v for v in step.operands if twins[v][1] is not None]
    operands = {twins[v][1] for v in sliced}
    if results == {None} and not operands:
        return True  # of weights and constants alone
    if None in results or len(operands) > 1:
        return False
    kind = step.rule.slices
    if kind == "sequence":  # as many steps as before: the batch has grown
        return sliced == step.operands[:1]
    if kind is None or len(results) > 1:
        return False
    if kind == "picked":
        return len(operands) == 1
    return operands <= results and not (kind == "rows" and -1 in results)

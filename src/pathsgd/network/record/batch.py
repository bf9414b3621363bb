"""The batch. gamma^2 belongs to the network, not to a batch of examples: a recording is made with one example.

The batch dimension is the first one along which the model treats slices separately: resized, it leaves the steps as
they are, the outputs grow in proportion, and so does the number of paths. Inputs may be nested (tuples, lists, dicts):
every tensor in them may have it. Where no batch dimension is found (an unbatched input), the inputs are taken as they
are. Where rows differ in structure (a packed batch, masks, lengths) there is no one example: gamma^2 is averaged over
the rows, so that it does not depend on which of them is first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.inputs import Call, is_packed, is_sparse, map_tensors, numbered_tensors
from pathsgd.network.record.slices import are_certainly_separate
from pathsgd.network.rules.base import examples, repeats
from pathsgd.network.squared import Evaluation
from pathsgd.network.tape import Recording, Step

FREE_CHOICES = 5
"""Up to how many input tensors may each have the batch in a dimension of its own (3^5 ways at the most)."""


def one_example(record: Callable[[Call], Recording], call: Call) -> Recording | None:
    """The recording with the batch dimension at size 1, or None where there is no batch dimension.

    record: makes a recording from a call as it is.
    """
    if is_packed(call):
        return None  # taken as it is, and averaged
    tensors = numbered_tensors(call)
    for dims in _candidates(tensors):
        try:
            one, two = (record(_resized(call, dims, size)) for size in (1, 2))
        except (ValueError, UnsupportedOperation):
            continue  # the model takes no other size here; what is wrong in earnest shows at the original sizes
        if _treats_slices_separately(one, two):
            return (
                one
                if _is_like_every_row(one, tensors, dims)
                else _every_row(record, call, tensors, dims)
            )
    return None


def _is_like_every_row(one: Recording, tensors: list[Tensor], dims: Sequence[int | None]) -> bool:
    """Whether all rows have the structure of the first."""
    structure = ((tensors[k], dims[k]) for k in one.structural)
    return all(d is None or bool((t == t.narrow(d, 0, 1)).all()) for t, d in structure)


def _every_row(
    record: Callable[[Call], Recording],
    call: Call,
    tensors: list[Tensor],
    dims: Sequence[int | None],
) -> Recording:
    recording = record(call)
    recording.rows = next(t.shape[d] for t, d in zip(tensors, dims) if d is not None)
    return recording


def _candidates(tensors: list[Tensor]) -> Iterator[tuple[int | None, ...]]:
    """Choices of one dimension a tensor, equal in size, most likely first; None: this input has no batch dimension."""
    # Many tensors (the states of many layers) would have too many choices: then tensors of one shape choose together.
    owners: list[Any] = (
        [t.shape for t in tensors] if len(tensors) > FREE_CHOICES else list(range(len(tensors)))
    )
    options = {
        owner: (*range(0 if is_sparse(t) else min(2, t.dim())), None)
        for owner, t in zip(owners, tensors)
    }
    choices = (dict(zip(options, chosen)) for chosen in itertools.product(*options.values()))
    every = [tuple(choice[owner] for owner in owners) for choice in choices]
    for dims in sorted(
        every, key=lambda c: (c.count(None), len(set(c)), [2 if d is None else d for d in c])
    ):
        sizes = {t.shape[d] for t, d in zip(tensors, dims) if d is not None}
        if len(sizes) == 1:
            yield dims


def _resized(call: Call, dims: Sequence[int | None], size: int) -> Call:
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
    # Twice the output can still mix slices (a convolution, a shift in time): then there are more than twice the paths.
    try:
        paths = [_path_count(recording) for recording in (one, two)]
    except (IndexError, RuntimeError):
        return False  # constants (indices, lengths) that do not fit this size
    return paths[0] == -math.inf or abs(paths[1] - paths[0] - math.log(2)) < 1e-9 * (
        1 + abs(paths[0])
    )


def _signature(step: Step) -> tuple[Any, ...]:
    """What must not change with the batch size; a recurrent layer's number of steps tells time from batch."""
    return step.operation, step.where, repeats(step)


def _path_count(recording: Recording) -> float:
    """log of gamma^2 with every weight one: the number of paths, up to fixed weights."""
    one = torch.ones((), dtype=torch.float64)
    ones = {name: one.expand(value.shape) for name, value in recording.parameters.items()}
    total = Evaluation(recording, ones, derivative=None).total
    return float(total.log()) + math.log(examples(recording))

"""How the steps of a sequence lie in memory, padded and packed alike.

Every array over time is (all rows, features): the rows of step t follow those of step t-1, and row r belongs to the
same sequence at every step. A padded batch has `batch` rows at each step; a packed one has fewer as sequences end.
"Before" and "after" follow the direction of the layer: a reversed layer walks from the last step to the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Steps and rows of one batch of sequences."""

    steps: int
    batch: int
    starts: Tensor | None = None
    """First row of each step and the number of all rows, (steps + 1,) int64; None for padded sequences."""

    @classmethod
    def packed(cls, batch_sizes: Tensor) -> Layout:
        """Layout of a PackedSequence, from its `batch_sizes`."""
        starts = torch.zeros(len(batch_sizes) + 1, dtype=torch.int64)
        torch.cumsum(batch_sizes, 0, out=starts[1:])
        return cls(len(batch_sizes), int(batch_sizes[0]), starts)

    def bounds(self) -> list[tuple[int, int]]:
        """(first row, end) of every step, in order of time."""
        if self.starts is None:
            return [(t * self.batch, (t + 1) * self.batch) for t in range(self.steps)]
        return list(itertools.pairwise(self.starts.tolist()))


class Step(NamedTuple):
    """One step of a walk. The first `continued` of its rows existed before it, the first `continuing` do after it."""

    first: int
    end: int
    before: int
    """First row of the step before; meaningless where `continued` is 0."""
    continued: int
    after: int
    continuing: int


def walk(layout: Layout, reverse: bool) -> Iterator[Step]:
    """The steps in the order in which the layer's direction visits them."""
    order = layout.bounds()[::-1] if reverse else layout.bounds()
    for before, now, after in zip([None, *order[:-1]], order, [*order[1:], None]):
        rows = now[1] - now[0]
        yield Step(
            *now,
            before[0] if before else 0,
            min(rows, before[1] - before[0]) if before else 0,
            after[0] if after else 0,
            min(rows, after[1] - after[0]) if after else 0,
        )

"""How the steps of a sequence lie in memory, padded and packed alike.

Every array over time is (all rows, features): the rows of step t follow those of step t-1, and row r belongs to the
same sequence at every step. A padded batch has `batch` rows at each step; a packed one has fewer as sequences end.
"Before" and "after" follow the direction of the layer: a reversed layer walks from the last step to the first.
"""

from __future__ import annotations

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

    def sizes(self) -> list[int]:
        """Number of rows of every step, in order of time."""
        return [self.batch] * self.steps if self.starts is None else self.starts.diff().tolist()


class Step(NamedTuple):
    """One step of a walk. Its first `continued` rows exist in step `before` too, its first `continuing` in `after`."""

    now: int
    rows: int
    before: int
    continued: int
    after: int
    continuing: int


def walk(layout: Layout, reverse: bool) -> Iterator[Step]:
    """The steps in the order in which the layer's direction visits them."""
    sizes = layout.sizes()
    direction = -1 if reverse else 1
    for position in range(layout.steps):
        now = layout.steps - 1 - position if reverse else position
        before, after, rows = now - direction, now + direction, sizes[now]
        yield Step(
            now,
            rows,
            before,
            min(rows, sizes[before]) if position > 0 else 0,
            after,
            min(rows, sizes[after]) if position < layout.steps - 1 else 0,
        )


def columns(rows: Tensor, direction: int, hidden: int) -> Tensor:
    """One direction's part of (T, B, D*H) or (R, D*H), as (all rows, H)."""
    return rows.view(-1, rows.shape[-1])[:, direction * hidden : (direction + 1) * hidden]

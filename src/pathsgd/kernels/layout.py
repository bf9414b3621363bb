"""How the steps of a sequence lie in memory, padded and packed alike.

Every array over time is (all rows, features): the rows of step t follow those of step t-1, and row
r belongs to the same sequence at every step. A padded batch has `batch` rows at each step; a packed
one has fewer as sequences end. "Before" and "after" follow the direction of the layer: a reversed
layer walks from the last step to the first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, address, fields


class Shape(ctypes.Structure):
    """`Shape` of rnn.h."""

    _fields_ = [*fields(INT, "steps batch hidden inputs reversed threads"), ("row_starts", POINTER)]


class Layout(NamedTuple):
    """Steps and rows of one batch of sequences."""

    steps: int
    batch: int
    starts: Tensor | None = None
    """First row of each step and the number of all rows, (steps + 1,) int64; None for padded
    sequences."""

    @classmethod
    def packed(cls, batch_sizes: Tensor) -> Layout:
        """Layout of a PackedSequence, from its `batch_sizes`."""
        starts = torch.zeros(len(batch_sizes) + 1, dtype=torch.int64)
        torch.cumsum(batch_sizes, 0, out=starts[1:])
        return cls(len(batch_sizes), int(batch_sizes[0]), starts)

    def sizes(self) -> list[int]:
        """Number of rows of every step, in order of time."""
        return [self.batch] * self.steps if self.starts is None else self.starts.diff().tolist()

    def rows(self) -> tuple[int, ...]:
        """Shape of an array over time before its last dimension.

        (steps, batch), or (all rows,) when packed.
        """
        return (self.steps, self.batch) if self.starts is None else (int(self.starts[-1]),)

    def shape(self, hidden: int, inputs: int, direction: int) -> Shape:
        """What the kernel is told about this layout and one direction of a layer."""
        starts = address(self.starts, torch.int64, self.steps + 1)
        return Shape(
            self.steps, self.batch, hidden, inputs, direction, native.thread_count(), starts
        )


class Visit(NamedTuple):
    """One step, as a walk over the layout meets it.

    Its first `continued` rows exist in step `before` too, its first `continuing` rows in step
    `after`.
    """

    now: int
    rows: int
    before: int
    continued: int
    after: int
    continuing: int


def walk(layout: Layout, reverse: bool) -> Iterator[Visit]:
    """The steps in the order in which the layer's direction visits them."""
    sizes = layout.sizes()
    direction = -1 if reverse else 1
    for position in range(layout.steps):
        now = layout.steps - 1 - position if reverse else position
        before, after, rows = now - direction, now + direction, sizes[now]
        yield Visit(
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


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """tensor[:rows], without a view where that is all of it."""
    return tensor if tensor.shape[0] == rows else tensor[:rows]

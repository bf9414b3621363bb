"""Shared by the language-modelling tasks: parallel streams of text, read window by window.

A text of N symbols in B rows of L = (N - 1) // B symbols::

    row b reads symbols b L .. (b + 1) L - 1 and predicts, at each, the next one

Window k is steps k T .. (k + 1) T - 1 of every row at once.  The state after a window is the first
state of the next (``carry``); gradients do not cross (``detach_state``).  Training goes over the
full windows in order, then starts again from the top with a fresh state.  Evaluation takes every
symbol of a split exactly once: the last window may be shorter, and the N - 1 - B L symbols that
fill no row make a last sequence of their own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from pathsgd_lab.tasks.base import Batch, CountedStream, PaperSettings, Split, Task, TaskData

EVALUATION_ROWS = 64
CHARACTERS = PaperSettings(2048, 1024, "uniform", 0.01, 0.2, batch_size=64)
"""The paper's sizes and initial values for text by characters; the batch size is ours."""


class TextTask(Task):
    """A task that predicts the next symbol of a text at every step."""

    tokens: ClassVar[bool] = True
    every_step: ClassVar[bool] = True

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of symbols."""

    @property
    @abstractmethod
    def window(self) -> int:
        """Steps of truncated back-propagation."""

    @property
    def input_size(self) -> int:
        """Symbols."""
        return self.vocabulary

    @property
    def output_size(self) -> int:
        """The same symbols."""
        return self.vocabulary

    @property
    def length(self) -> int:
        """The window of truncated back-propagation."""
        return self.window

    @property
    def chance(self) -> float:
        """All symbols equally likely."""
        return float(self.vocabulary) if self.metric == "perplexity" else math.log2(self.vocabulary)


class WindowStream(CountedStream):
    """Windows of the training text, in order, for ever.

    The order is the text's own, so nothing is left for a seed to decide.
    """

    def __init__(self, text: Tensor, batch_size: int, window: int) -> None:
        row = (len(text) - 1) // max(1, batch_size)
        if batch_size < 1 or row < window:
            raise ValueError(
                f"a text of {len(text)} symbols has no full window of {window} in each of "
                f"{batch_size} rows: use a smaller batch or window, or more text"
            )
        self.rows = text[: row * batch_size].view(batch_size, row)
        self.next_rows = text[1 : row * batch_size + 1].view(batch_size, row)
        self.window = window
        self.per_epoch = row // window

    def next(self) -> Batch:
        """The next window of every row."""
        position = self.drawn % self.per_epoch
        self.drawn += 1
        steps = slice(position * self.window, (position + 1) * self.window)
        # Texts are stored as bytes or small integers; only the window becomes int64, time first.
        inputs, targets = (
            rows[:, steps].t().long().contiguous() for rows in (self.rows, self.next_rows)
        )
        return Batch(inputs, targets, position > 0)


class TextData(TaskData):
    """A text in three splits, each a one-dimensional tensor of symbols."""

    task: TextTask
    splits = ("train", "valid", "test")

    def __init__(self, task: TextTask, texts: dict[Split, Tensor]) -> None:
        super().__init__(task)
        self.texts = texts

    def stream(self, batch_size: int, seed: int) -> WindowStream:
        """Windows of the training text; ``seed`` has no effect."""
        return WindowStream(self.texts["train"], batch_size, self.task.window)

    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """All of a split: windows of parallel rows, then what fills no row."""
        self.check_split(split)
        text = self.texts[split]
        predicted = len(text) - 1
        # A short text in many rows would be mostly first symbols, which have no context.
        rows = max(1, min(batch_size or EVALUATION_ROWS, predicted // self.task.window))
        row = predicted // rows
        yield from self._windows(
            text[: row * rows].view(rows, row), text[1 : row * rows + 1].view(rows, row)
        )
        rest = row * rows
        if rest < predicted:
            yield from self._windows(text[rest:-1].view(1, -1), text[rest + 1 :].view(1, -1))

    def _windows(self, rows: Tensor, next_rows: Tensor) -> Iterator[Batch]:
        for start in range(0, rows.shape[1], self.task.window):
            steps = slice(start, start + self.task.window)
            yield Batch(rows[:, steps].t().long(), next_rows[:, steps].t().long(), start > 0)

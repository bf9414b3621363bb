"""Copy memory (Arjovsky et al., 2015, section 4.1): repeat ten symbols after a long pause.

With lag T, ten symbols s_1..s_10 from {0..7}, the blank 8 and the delimiter 9, all T + 20 steps
long::

    input    s_1 .. s_10 | 8 x (T - 1) | 9 | 8 x 10
    target   8 x (T + 10)                  | s_1 .. s_10

Answering blanks, then any constant mixture of the eight symbols, has a mean cross-entropy of 10 ln
8 / (T + 20). Training minimises the cross-entropy of all steps; the metric is the share of wrong
symbols among the ten to repeat (the paper at hand has no metric for this task; this one has the
same meaning for every T).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from pathsgd_lab.tasks.base import (
    Batch,
    CountedStream,
    Metric,
    PaperSettings,
    Split,
    Task,
    TaskData,
)
from pathsgd_lab.tasks.sampling import generator_for

SYMBOLS, BLANK, DELIMITER = 8, 8, 9
MEMORY = 10


@dataclass(frozen=True)
class CopyTask(Task):
    """Repeat ten symbols after a pause (error in per cent of these symbols; chance is 87.5)."""

    name: ClassVar[str] = "copy"
    title: ClassVar[str] = "Copy memory"
    tokens: ClassVar[bool] = True
    every_step: ClassVar[bool] = True
    metric: ClassVar[Metric] = "error_percent"
    paper: ClassVar[PaperSettings] = PaperSettings(batch_size=20)
    input_size = SYMBOLS + 2
    """Eight symbols, blank, delimiter."""
    output_size = SYMBOLS + 1
    """Eight symbols and the blank."""
    chance = 100.0 * (1.0 - 1.0 / SYMBOLS)
    """Seven in eight wrong."""
    solved = 1.0
    """One symbol in a hundred wrong."""

    lag: int = 100
    """T: steps between the symbols and the delimiter (100, 200, 300 and 500 in Arjovsky et al.)."""
    valid_size: int = 500
    """Sequences in the validation set."""
    test_size: int = 1_000
    """Sequences in the test set."""

    def __post_init__(self) -> None:
        if self.lag < 1:
            raise ValueError(f"the copy task needs a lag of at least 1, got {self.lag}")

    @property
    def length(self) -> int:
        """Symbols, lag and answer."""
        return self.lag + 2 * MEMORY

    def tally(self, outputs: Tensor, targets: Tensor) -> tuple[float, int]:
        """Wrong symbols among the last ten steps, where blank is never right."""
        return super().tally(outputs[-MEMORY:], targets[-MEMORY:])

    def prepare(self, data_dir: Path | str | None = None) -> CopyData:
        """Nothing to load."""
        return CopyData(self)


def sequences(symbols: Tensor, lag: int) -> Batch:
    """Input and target from the symbols (10, B) to remember."""
    count = symbols.shape[1]
    inputs = torch.full((lag + 2 * MEMORY, count), BLANK)
    targets = inputs.clone()
    inputs[:MEMORY] = symbols
    inputs[MEMORY + lag - 1] = DELIMITER
    targets[-MEMORY:] = symbols
    return Batch(inputs, targets, carry=False)


class CopyStream(CountedStream):
    """Sequences never seen before; batch k is a function of (seed, k)."""

    def __init__(self, task: CopyTask, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.batch_size, self.seed, self._lag = batch_size, seed, task.lag

    def next(self) -> Batch:
        """The next batch."""
        generator = generator_for(self.seed, self.drawn)
        self.drawn += 1
        return sequences(
            torch.randint(SYMBOLS, (MEMORY, self.batch_size), generator=generator), self._lag
        )

    def set_length(self, length: int) -> None:
        """Sequences of ``length`` = lag + 20 steps from the next batch on."""
        if length <= 2 * MEMORY:
            raise ValueError(
                f"the copy task needs more than {2 * MEMORY} steps, got length={length}"
            )
        self._lag = length - 2 * MEMORY

    def state_dict(self) -> dict[str, int]:
        """Batches drawn and the present lag."""
        return {**super().state_dict(), "lag": self._lag}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""
        super().load_state_dict(state)
        self._lag = state["lag"]


class CopyData(TaskData):
    """Fresh training sequences; validation and test sets that are the same for every seed."""

    task: CopyTask

    def stream(self, batch_size: int, seed: int) -> CopyStream:
        """Fresh sequences."""
        return CopyStream(self.task, batch_size, seed)

    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """The fixed set of a split."""
        self.check_split(split)
        sets = {
            "valid": (0x7661_6C69, self.task.valid_size),
            "test": (0x7465_7374, self.task.test_size),
        }
        key, count = sets[split]
        symbols = torch.randint(SYMBOLS, (MEMORY, count), generator=generator_for(key))
        for part in symbols.split(batch_size or 250, dim=1):
            yield sequences(part, self.task.lag)

"""The adding problem (Hochreiter and Schmidhuber, 1997): add the two marked numbers.

Input at step t: (x_t, m_t) with x_t ~ U[0, 1] and m_t = 1 at two steps, 0 elsewhere.  Target: the
sum of the two marked x.  Always answering 1 has mean squared error 2 Var(U[0, 1]) = 1/6.

Fresh batches are made in blocks of many batches at once, because one training step at T = 100 takes
about two milliseconds and a handful of small tensor operations per step would be a visible part of
that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pathsgd_lab.tasks.base import Batch, BatchStream, PaperSettings, Split, Task, TaskData
from pathsgd_lab.tasks.sampling import ShuffledIndices, generator_for

BLOCK_NUMBERS = 1 << 18
"""Random numbers per block: 1 MB of float32, which stays in the cache between making and using
it."""

Markers = Literal["halves", "anywhere"]


@dataclass(frozen=True)
class AddingTask(Task):
    """Add two marked numbers of a sequence (mean squared error; chance is 1/6)."""

    name: ClassVar[str] = "adding"
    title: ClassVar[str] = "Adding problem"
    paper: ClassVar[PaperSettings] = PaperSettings()
    input_size = 2
    """The number and its marker."""
    output_size = 1
    """The sum."""
    chance = 1.0 / 6.0
    """2 Var(U[0, 1])."""
    solved = 1e-3
    """The paper prints 100 MSE to one decimal; one unit of that last digit."""
    target_mean = 1.0
    """Two numbers with mean 1/2."""

    length: int = 100
    """T: steps per sequence. The paper uses 100, 400 and 750."""
    markers: Markers = "halves"
    """Where the two marked steps lie: one in each half, or any two different steps."""
    train_size: int = 0
    """Training sequences in a fixed set (100000 in Le et al., 2015); 0: fresh sequences for
    ever."""
    valid_size: int = 1_000
    """Sequences in the validation set."""
    test_size: int = 10_000
    """Sequences in the test set."""

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"the adding problem needs at least 2 steps, got length={self.length}")
        if min(self.train_size, self.valid_size, self.test_size) < 0:
            raise ValueError("train_size, valid_size and test_size cannot be negative")

    def prepare(self, data_dir: Path | str | None = None) -> AddingData:
        """Nothing to load; sets are made when first asked for."""
        return AddingData(self)


def marker_positions(
    count: int, length: int, markers: Markers, generator: torch.Generator
) -> Tensor:
    """Two marked steps for each of ``count`` sequences, (2, count) int64."""
    if markers == "halves":
        half = length // 2
        first = torch.randint(0, half, (count,), generator=generator)
        second = torch.randint(half, length, (count,), generator=generator)
    else:
        first = torch.randint(0, length, (count,), generator=generator)
        # One of the other length - 1 steps, each as likely.
        second = (first + torch.randint(1, length, (count,), generator=generator)) % length
    return torch.stack([first, second])


def with_markers(numbers: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (N, T, B, 2) and targets (N, B, 1) from numbers (N, T, B) and positions (2, N, B)."""
    index = positions.movedim(0, 1)
    targets = numbers.gather(1, index).sum(1).unsqueeze(-1)
    marks = torch.zeros_like(numbers).scatter_(1, index, 1.0)
    return torch.stack([numbers, marks], dim=-1), targets


class FreshStream(BatchStream):
    """Sequences never seen before, for ever.

    Block k is a function of (seed, k, its length, its number of batches).  After a change of length
    the blocks start
    small and double: a curriculum that changes the length at every step would otherwise make much
    and use little.
    """

    def __init__(self, task: AddingTask, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self._drawn = 0
        self._go_to(block=0, length=task.length, count=1, used=0)

    def _go_to(self, block: int, length: int, count: int, used: int) -> None:
        self._block, self._length, self._count, self._used = block, length, count, used
        generator = generator_for(self.seed, block)
        numbers = torch.rand(count, length, self.batch_size, generator=generator)
        sequences = count * self.batch_size
        positions = marker_positions(sequences, length, self.task.markers, generator)
        inputs, targets = with_markers(numbers, positions.view(2, count, self.batch_size))
        self._batches = list(zip(inputs.unbind(0), targets.unbind(0), strict=True))

    def next(self) -> Batch:
        """The next batch."""
        if self._used == self._count:
            most = max(1, BLOCK_NUMBERS // (self._length * self.batch_size))
            self._go_to(self._block + 1, self._length, min(2 * self._count, most), used=0)
        inputs, targets = self._batches[self._used]
        self._used += 1
        self._drawn += 1
        return Batch(inputs, targets, carry=False)

    def set_length(self, length: int) -> None:
        """Sequences of ``length`` steps from the next batch on."""
        if length < 2:
            raise ValueError(f"the adding problem needs at least 2 steps, got length={length}")
        if length != self._length:
            self._go_to(self._block + 1, length, count=1, used=0)

    @property
    def epoch(self) -> float:
        """Batches drawn so far."""
        return float(self._drawn)

    def state_dict(self) -> dict[str, int]:
        """Position: block, its length and number of batches, batches used of it and in all."""
        names = "block", "length", "count", "used", "drawn"
        return {name: getattr(self, f"_{name}") for name in names}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""
        self._go_to(state["block"], state["length"], state["count"], state["used"])
        self._drawn = state["drawn"]


class FixedSet:
    """Sequences made once, with a key of their own: numbers (N, T) and positions (2, N)."""

    def __init__(self, task: AddingTask, count: int, key: int) -> None:
        generator = generator_for(key)
        self.numbers = torch.rand(count, task.length, generator=generator)
        self.positions = marker_positions(count, task.length, task.markers, generator)

    def batch(self, indices: Tensor) -> Batch:
        """The sequences with these indices, (B,)."""
        numbers = self.numbers[indices].t().contiguous()
        inputs, targets = with_markers(
            numbers.unsqueeze(0), self.positions[:, indices].unsqueeze(1)
        )
        return Batch(inputs[0], targets[0], carry=False)


class FixedStream(BatchStream):
    """Shuffled epochs over a fixed training set."""

    def __init__(self, sequences: FixedSet, batch_size: int, seed: int) -> None:
        self.sequences = sequences
        self.indices = ShuffledIndices(len(sequences.numbers), batch_size, seed)

    def next(self) -> Batch:
        """The next batch."""
        return self.sequences.batch(self.indices.next())

    @property
    def epoch(self) -> float:
        """Passes over the training set."""
        return self.indices.epoch

    def state_dict(self) -> dict[str, int]:
        """Epoch and position."""
        return self.indices.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""
        self.indices.load_state_dict(state)


class AddingData(TaskData):
    """Fresh or fixed training sequences; the same validation and test sets for every seed."""

    task: AddingTask
    # Keys of the fixed sets: far from the small integers that people use as seeds.
    _keys: ClassVar = {"train": 0x7261_696E, "valid": 0x7661_6C69, "test": 0x7465_7374}

    def __init__(self, task: AddingTask) -> None:
        super().__init__(task)
        self._sets: dict[str, FixedSet] = {}
        if task.train_size:
            self.splits = ("train", "valid", "test")

    def fixed_set(self, split: Split) -> FixedSet:
        """The fixed set of a split, made when first asked for."""
        if split not in self._sets:
            size: int = getattr(self.task, f"{split}_size")
            self._sets[split] = FixedSet(self.task, size, self._keys[split])
        return self._sets[split]

    def stream(self, batch_size: int, seed: int) -> BatchStream:
        """Fresh sequences, or shuffled epochs of the fixed set if ``train_size`` is given."""
        if self.task.train_size:
            return FixedStream(self.fixed_set("train"), batch_size, seed)
        return FreshStream(self.task, batch_size, seed)

    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """The fixed set of a split in order."""
        self.check_split(split)
        sequences = self.fixed_set(split)
        for indices in torch.arange(len(sequences.numbers)).split(batch_size or 500):
            yield sequences.batch(indices)

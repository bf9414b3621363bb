"""Perceptual decisions in context (after Mante et al., 2013): a cue says which signal counts.

Input at step t: fixation (1 until the answer is asked for), two signals, two context cues of which
one is 1.  Each signal has a sign and a strength of its own and shows from step 2 on until ``delay``
steps before the end, under noise; the class to name after the last step is the sign of the signal
that the context points to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

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

STRENGTHS = (0.25, 0.5, 1.0)
ONSET = 2


@dataclass(frozen=True)
class DecisionTask(Task):
    """Name the sign of the noisy signal that the context points to (error in per cent)."""

    name: ClassVar[str] = "decision"
    title: ClassVar[str] = "Decision in context"
    metric: ClassVar[Metric] = "error_percent"
    paper: ClassVar[PaperSettings] = PaperSettings(batch_size=32)
    input_size = 5
    """Fixation, two signals, two context cues."""
    output_size = 2
    """Two choices."""
    chance = 50.0
    """One in two wrong."""

    length: int = 20
    """T: steps per trial."""
    delay: int = 4
    """Steps between the end of the signals and the answer."""
    noise: float = 1.0
    """Standard deviation of the noise on each signal at each step."""
    valid_size: int = 1_000
    """Trials in the validation set."""
    test_size: int = 4_000
    """Trials in the test set."""

    def __post_init__(self) -> None:
        if self.delay < 1 or self.length <= ONSET + self.delay:
            raise ValueError(
                f"a trial needs a delay of 1 step or more and more than {ONSET} + delay steps"
            )
        if self.noise < 0.0 or min(self.valid_size, self.test_size) < 0:
            raise ValueError("noise, valid_size and test_size cannot be negative")

    def prepare(self, data_dir: Path | str | None = None) -> DecisionData:
        """Nothing to load."""
        return DecisionData(self)

    def trials(self, count: int, generator: torch.Generator) -> Batch:
        """New trials, (T, B, 5) and (B,)."""
        signs = torch.randint(0, 2, (2, count), generator=generator)
        strengths = torch.tensor(STRENGTHS)[
            torch.randint(0, len(STRENGTHS), (2, count), generator=generator)
        ]
        context = torch.randint(0, 2, (count,), generator=generator)
        shown = self.length - ONSET - self.delay
        inputs = torch.zeros(self.length, count, self.input_size)
        inputs[:-1, :, 0] = 1.0
        evidence = ((2 * signs - 1) * strengths).t()
        noise = self.noise * torch.randn(shown, count, 2, generator=generator)
        inputs[ONSET : ONSET + shown, :, 1:3] = evidence + noise
        inputs[:, :, 3:] = torch.nn.functional.one_hot(context, 2).float()
        return Batch(inputs, signs.gather(0, context.unsqueeze(0))[0], carry=False)


class DecisionStream(CountedStream):
    """Trials never seen before, for ever; batch k is a function of (seed, k)."""

    def __init__(self, task: DecisionTask, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.task, self.batch_size, self.seed = task, batch_size, seed

    def next(self) -> Batch:
        """The next batch."""
        self.drawn += 1
        return self.task.trials(self.batch_size, generator_for(self.seed, self.drawn))


class DecisionData(TaskData):
    """Fresh training trials; validation and test sets that are the same for every seed."""

    task: DecisionTask
    # Keys of the fixed sets: far from the small integers that people use as seeds.
    _keys: ClassVar[dict[str, int]] = {"valid": 0x6465_6376, "test": 0x6465_6374}

    def stream(self, batch_size: int, seed: int) -> DecisionStream:
        """Fresh trials."""
        return DecisionStream(self.task, batch_size, seed)

    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """The fixed set of a split in order."""
        self.check_split(split)
        size = self.task.valid_size if split == "valid" else self.task.test_size
        inputs, targets, _ = self.task.trials(size, generator_for(self._keys[split]))
        for part in torch.arange(size).split(batch_size or 1000):
            yield Batch(inputs[:, part], targets[part], carry=False)

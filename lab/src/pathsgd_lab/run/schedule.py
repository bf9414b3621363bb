"""How the learning rate and the length of sequences change in the course of a run.

    rate(step) = lr * warm-up(step) * decay(progress) * (first length / length)^lr_power

``progress`` runs from 0 to 1 over the budget, or over ``decay_steps``.  With a length curriculum it
starts when the sequences have reached their full length, since nobody knows beforehand how long
that takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run."""

    decay: Decay = "constant"
    """Shape of the rate: constant, linear to the end, or half a cosine."""
    decay_steps: int = 0
    """Steps over which the rate decays, after which the run ends; 0: the whole budget."""
    warmup: int = 0
    """Steps in which the rate rises from 0."""

    def __post_init__(self) -> None:
        if self.decay_steps < 0 or self.warmup < 0:
            raise ValueError("decay_steps and warmup cannot be negative")

    def factor(self, step: int, progress: float) -> float:
        """Factor on the rate of the step after ``step`` steps."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.decay == "linear":
            return warm * max(0.0, 1.0 - progress)
        if self.decay == "cosine":
            return warm * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return warm


@dataclass(frozen=True)
class Curriculum:
    """Short sequences first: longer ones whenever the running loss is small."""

    start_length: int = 0
    """Length of the first sequences; 0: full length from the start."""
    growth: float = 1.2
    """Factor on the length at each promotion."""
    stages: tuple[int, ...] = ()
    """The lengths to go through, instead of growing by a factor (for tasks that have certain
    lengths only)."""
    promote_below: float = 3e-3
    """Running loss below which the sequences grow."""
    patience: int = 50
    """Steps at least between two promotions."""
    smoothing: float = 0.95
    """Decay of the running loss."""
    lr_power: float = 1.0
    """The rate is proportional to length to minus this power."""

    def __post_init__(self) -> None:
        if self.start_length < 0 or not self.growth > 1.0:
            raise ValueError("start_length cannot be negative and growth must exceed 1")
        if list(self.stages) != sorted(set(self.stages)):
            raise ValueError(f"stages must grow, got {self.stages}")
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing must be in [0, 1), got {self.smoothing}")

    @property
    def first_length(self) -> int:
        """Length of the first sequences; 0 without a curriculum."""
        return self.stages[0] if self.stages else self.start_length

    def next_length(self, length: int, full: int) -> int:
        """The length after ``length``."""
        if self.stages:
            return next((stage for stage in self.stages if stage > length), full)
        return min(full, max(length + 1, int(length * self.growth)))


class CurriculumState:
    """Where a run stands in its curriculum; a pure function of the losses seen so far."""

    def __init__(self, curriculum: Curriculum, full_length: int) -> None:
        self.curriculum, self.full_length = curriculum, full_length
        self.first_length = min(curriculum.first_length or full_length, full_length)
        self.length = self.first_length
        self.running_loss: float | None = None
        self.last_promotion = 0
        self.full_since: int | None = 0 if self.length == full_length else None

    @property
    def at_full_length(self) -> bool:
        """Whether the sequences are as long as the task's."""
        return self.full_since is not None

    @property
    def rate_factor(self) -> float:
        """(first length / length)^lr_power."""
        return (self.first_length / self.length) ** self.curriculum.lr_power

    def observe(self, loss: float) -> None:
        """Take one step's loss into the running loss."""
        keep = self.curriculum.smoothing
        self.running_loss = (
            loss if self.running_loss is None else keep * self.running_loss + (1.0 - keep) * loss
        )

    def promote(self, step: int) -> bool:
        """Grow the sequences if the running loss allows it."""
        if (
            self.at_full_length
            or self.running_loss is None
            or step - self.last_promotion < self.curriculum.patience
            or not self.running_loss < self.curriculum.promote_below
        ):
            return False
        self.length = self.curriculum.next_length(self.length, self.full_length)
        self.last_promotion = step
        # The loss on longer sequences is not known yet: start its running mean well above the last
        # one.
        self.running_loss = min(1.0, 4.0 * self.running_loss)
        if self.length == self.full_length:
            self.full_since = step
        return True

    def state_dict(self) -> dict[str, float | int | None]:
        """Plain numbers."""
        return {
            "length": self.length,
            "running_loss": self.running_loss,
            "last_promotion": self.last_promotion,
            "full_since": self.full_since,
        }

    def load_state_dict(self, state: dict[str, float | int | None]) -> None:
        """Go back to a state that ``state_dict`` gave."""
        for name, value in state.items():
            setattr(self, name, value)

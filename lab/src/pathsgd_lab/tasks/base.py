"""What a task is: sizes, data in batches, a loss to train on and a metric to report.

The line from a task to a number::

    Task (frozen settings) --prepare(data_dir)--> TaskData --stream(batch_size, seed)--> BatchStream
    --next()--> Batch
                                                  TaskData --evaluate(model, split)--> float, in
                                                  units of ``metric``

Shapes are time-first.  T steps, B sequences, I inputs, O outputs:

    inputs    (T, B, I) float32, or (T, B) int64 when ``task.tokens``
    outputs   (T, B, O) when ``task.every_step``, otherwise (B, O) of the last step
    targets   float32 shaped like the outputs for ``mse``; otherwise int64 classes, (T, B) or (B,)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Metric = Literal["mse", "error_percent", "perplexity", "bpc"]
Split = Literal["train", "valid", "test"]
State = tuple[Tensor, ...]
"""What a recurrent model carries from one window to the next: real tensors, batch first."""


class Batch(NamedTuple):
    """One step's worth of data."""

    inputs: Tensor
    targets: Tensor
    carry: bool
    """True: the sequences continue those of the previous batch, so its final state is this batch's
    first state.
    False: start from the model's own initial state."""


class BatchStream(ABC):
    """An endless, resumable sequence of training batches.

    Two streams with the same arguments and the same ``state_dict()`` give the same batches bit for
    bit.
    """

    @abstractmethod
    def next(self) -> Batch:
        """The next batch."""

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the training set so far, a fraction; batches so far for endless data."""

    @abstractmethod
    def state_dict(self) -> dict[str, int]:
        """The position as plain integers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""

    def set_length(self, length: int) -> None:
        """Sequences of this length from the next batch on; an error where a task has one length."""
        raise ValueError(
            f"{type(self).__name__} has sequences of one length only; remove the length curriculum"
        )


class CountedStream(BatchStream):
    """A stream whose next batch follows from the number of batches drawn so far."""

    drawn = 0
    per_epoch = 1
    """Batches of one pass; 1 for fresh sequences, whose epochs are batches."""

    @property
    def epoch(self) -> float:
        """Passes, or batches, so far."""
        return self.drawn / self.per_epoch

    def state_dict(self) -> dict[str, int]:
        """Batches drawn."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""
        self.drawn = state["drawn"]


class TaskData(ABC):
    """A task with its data at hand."""

    splits: tuple[Split, ...] = ("valid", "test")
    """Splits that ``eval_batches`` and ``evaluate`` know."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def stream(self, batch_size: int, seed: int) -> BatchStream:
        """Training batches; ``seed`` decides their order and the content of synthetic ones."""

    @abstractmethod
    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """Every element of a split once, always in one order, with ``carry`` as in training."""

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        batch_size: int | None = None,
        limit: int | None = None,
    ) -> float:
        """The task's metric of ``model`` on a split (on its first ``limit`` batches, if not 0).

        The model is switched to evaluation mode for the time of the call.
        """
        total, count = 0.0, 0
        state: State | None = None
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                for index, batch in enumerate(self.eval_batches(split, batch_size)):
                    if limit and index >= limit:
                        break
                    outputs, state = model(batch.inputs, state if batch.carry else None)
                    batch_total, batch_count = self.task.tally(outputs, batch.targets)
                    total, count = total + batch_total, count + batch_count
        finally:
            model.train(was_training)
        if count == 0:
            raise ValueError(f"the {split} split of {self.task.name} is empty")
        return self.task.metric_of_mean(total / count)

    def check_split(self, split: str) -> None:
        """One clear error for a split this task does not have."""
        if split not in self.splits:
            raise ValueError(
                f"{self.task.name} has no split {split!r}; choose one of {', '.join(self.splits)}"
            )


@dataclass(frozen=True)
class PaperSettings:
    """Sizes and initial values that Neyshabur et al. (2016, section 5) give for a task."""

    hidden: int = 100
    """Units of a plain recurrent net."""
    gated_hidden: int = 100
    """Units of an LSTM or GRU."""
    recurrent: Literal["identity", "uniform"] = "identity"
    """Initial recurrent matrix of a ReLU net."""
    recurrent_range: float = 0.01
    """Half-width of the uniform initial recurrent matrix, where it is uniform."""
    others_range: float = 0.01
    """Half-width of the uniform initial non-recurrent weights of a plain net."""
    batch_size: int = 16
    """Sequences per step."""


class Task(ABC):
    """Settings of a task: frozen dataclasses, one file each, listed in ``TASKS``."""

    name: ClassVar[str]
    """Key in ``TASKS`` and on the command line."""
    title: ClassVar[str]
    """A few words for tables and figures."""
    tokens: ClassVar[bool] = False
    """Inputs are integer symbols in [0, input_size)."""
    every_step: ClassVar[bool] = False
    """An output and a loss at each step; otherwise at the last step only."""
    metric: ClassVar[Metric] = "mse"
    """Unit of ``evaluate``; smaller is better in all of them."""
    paper: ClassVar[PaperSettings] = PaperSettings()
    """Defaults for systems on this task."""
    data_set: ClassVar[str | None] = None
    """Name of the data set the task reads (see ``pathsgd_lab.data``); None for synthetic tasks."""

    @property
    @abstractmethod
    def input_size(self) -> int:
        """I: features per step, or the number of symbols when ``tokens``."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """O: regressed values, or classes."""

    @property
    @abstractmethod
    def length(self) -> int:
        """T: steps per training sequence (the window, for text)."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Metric of the best predictor that ignores its input (uniform prediction, for text)."""

    @property
    def solved(self) -> float | None:
        """A run with a metric at or below this is solved; None: there is no natural threshold."""
        return None

    @property
    def target_mean(self) -> float:
        """Mean of a regression target, a better start for the output bias than 0."""
        return 0.0

    @abstractmethod
    def prepare(self, data_dir: Path | str | None = None) -> TaskData:
        """Load or generate the data.  ``data_dir`` as in ``pathsgd_lab.data.data_directory``."""

    def example_inputs(self, batch_size: int = 1) -> Tensor:
        """Zero inputs of the right shape and type, for tools that need one forward pass."""
        if self.tokens:
            return torch.zeros(self.length, batch_size, dtype=torch.int64)
        return torch.zeros(self.length, batch_size, self.input_size)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: mean squared error, or mean cross-entropy in nats."""
        if self.metric == "mse":
            return F.mse_loss(outputs, targets)
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def tally(self, outputs: Tensor, targets: Tensor) -> tuple[float, int]:
        """Sum and number of the elementary errors whose mean makes the metric."""
        if self.metric == "mse":
            return F.mse_loss(outputs, targets, reduction="sum").item(), targets.numel()
        if self.metric == "error_percent":
            return float((outputs.argmax(-1) != targets).sum().item()), targets.numel()
        return F.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), reduction="sum"
        ).item(), targets.numel()

    def metric_of_mean(self, mean: float) -> float:
        """The metric from a mean elementary error, or from a mean loss that is that error."""
        if self.metric == "mse":
            return mean
        if self.metric == "error_percent":
            return 100.0 * mean
        if self.metric == "bpc":
            return mean / math.log(2.0)
        # A diverging model can have a loss beyond exp's range: its perplexity is infinite, not an
        # exception.
        return math.exp(mean) if mean < 700.0 else math.inf


def detach_state(state: State) -> State:
    """The same values outside the graph: gradients stop at a window's start."""
    return tuple(part.detach() for part in state)

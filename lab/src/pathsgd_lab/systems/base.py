"""A system: a model with its initial values, its penalty and its paper's optimiser.

    System (frozen settings) --build(task, seed)--> SequenceNet
    model(inputs, state=None) -> (outputs, state)          shapes as in ``pathsgd_lab.tasks.base``
    system.losses(model, task, batch, state) -> Losses     what one training step needs

``state`` is a tuple of real tensors, batch first, so that it can be detached, carried over windows
and saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from pathsgd_lab.tasks.base import Batch, State, Task


class SequenceNet(nn.Module, ABC):
    """A recurrent part and a linear readout of its hidden states, of every step or the last."""

    def __init__(self, task: Task, readout_inputs: int) -> None:
        super().__init__()
        self.every_step = task.every_step
        self.readout = nn.Linear(readout_inputs, task.output_size)

    @abstractmethod
    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """Hidden states (T, B, H), or only the last one (B, H), and the state to carry on."""

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Outputs (T, B, O), or (B, O) of the last step, and the state after the last step."""
        hidden, state = self.unroll(inputs, state, self.every_step)
        return self.readout(hidden), state

    def forward_with_hidden(
        self, inputs: Tensor, state: State | None = None
    ) -> tuple[Tensor, State, Tensor]:
        """As ``forward``, and all hidden states (T, B, H)."""
        hidden, state = self.unroll(inputs, state, True)
        return self.readout(hidden if self.every_step else hidden[-1]), state, hidden


class Losses(NamedTuple):
    """The outcome of one forward pass on a batch."""

    objective: Tensor
    """What to call ``backward`` on: loss + penalty."""
    loss: Tensor
    """The task's loss alone, to report and to watch."""
    state: State
    """State after the last step, still attached to the graph: ``detach_state`` before carrying it
    on."""


@dataclass(frozen=True)
class System(ABC):
    """Settings of a system: frozen dataclasses, listed in ``SYSTEMS``."""

    hidden: int | None = None
    """Recurrent units; None: the number the paper uses on the task."""
    mean_bias: bool = False
    """Start the output bias at the mean of the targets (1 in the adding problem) instead of 0."""

    name: ClassVar[str]
    """Key in ``SYSTEMS`` and on the command line."""
    title: ClassVar[str]
    """Name in tables and figures."""
    optimiser: ClassVar[str] = "adam"
    """Optimiser used unless a run says otherwise: "sgd", "adam", "rmsprop", "path-sgd", "path-adam"
    or "hessian-free"."""
    path_rules: ClassVar[bool] = False
    """True where the net is made of parts that path normalisation can read (ReLU and linear parts
    only)."""

    any_length: ClassVar[bool] = True
    """False where a net can read sequences of one length only."""

    def __post_init__(self) -> None:
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {self.hidden}")

    def build(self, task: Task, seed: int) -> SequenceNet:
        """A new model for ``task``; its parameters depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = self._build(task)
        if self.mean_bias:
            nn.init.constant_(net.readout.bias, task.target_mean)
        return net

    def misfit(self, task: Task) -> str:
        """Why this system cannot learn a task; empty where it can."""
        return ""

    @abstractmethod
    def _build(self, task: Task) -> SequenceNet:
        """Make the model with torch's global generator (seeded by ``build``)."""

    def losses(self, model: SequenceNet, task: Task, batch: Batch, state: State | None) -> Losses:
        """Forward pass, loss and penalty on one batch, from ``state`` or the initial state."""
        outputs, state = model(batch.inputs, state)
        loss = task.loss(outputs, batch.targets)
        return Losses(loss, loss, state)


def input_weights(task: Task, size: int) -> nn.Module:
    """W_in x_t, computed outside the recurrence: a product, or the symbol's row of a table.

    Rows of an ``nn.Embedding`` are columns of W_in: looking one up is the product with a one-hot
    vector.
    """
    if task.tokens:
        return nn.Embedding(task.input_size, size)
    return nn.Linear(task.input_size, size, bias=False)


def symbol_table(task: Task, size: int, learned: bool) -> nn.Embedding | None:
    """How symbols enter one of torch's layers: as ``size`` learned numbers each, or one-hot.

    None where the task has no symbols.
    """
    if not task.tokens:
        return None
    if learned:
        return nn.Embedding(task.input_size, size)
    return nn.Embedding.from_pretrained(torch.eye(task.input_size), freeze=True)


def gather_steps(steps: list[Tensor], all_steps: bool) -> Tensor:
    """Hidden states of a loop over time: stacked (T, B, H), or the last one (B, H)."""
    return torch.stack(steps) if all_steps else steps[-1]

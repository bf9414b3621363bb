"""What a system is: a recurrent model with its initial values, its penalty and the optimiser its paper used.

    System (frozen settings) --build(task, seed)--> nn.Module
    model(inputs, state=None) -> (outputs, state)          shapes as in ``pathsgd.lab.tasks.base``
    system.losses(model, task, batch, state) -> Losses     what one training step needs

``state`` is a tuple of real tensors, batch first, so that it can be detached, carried over windows and saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from pathsgd.lab.tasks.base import Batch, State, Task


class Losses(NamedTuple):
    """The outcome of one forward pass on a batch."""

    objective: Tensor
    """What to call ``backward`` on: loss + penalty."""
    loss: Tensor
    """The task's loss alone, to report and to watch."""
    state: State
    """State after the last step, still attached to the graph: ``detach_state`` before carrying it on."""


@dataclass(frozen=True)
class System(ABC):
    """Settings of a system.  Subclasses are frozen dataclasses, one file each, listed in ``SYSTEMS``."""

    hidden: int | None = None
    """Recurrent units; None: the number the paper uses on the task."""

    name: ClassVar[str]
    """Key in ``SYSTEMS`` and on the command line."""
    title: ClassVar[str]
    """Name in tables and figures."""
    optimiser: ClassVar[str] = "adam"
    """Optimiser used unless a run says otherwise: "sgd", "adam", "rmsprop", "path-sgd", "path-adam" or
    "hessian-free"."""
    path_rules: ClassVar[bool] = False
    """True where the net is made of parts that path normalisation can read (ReLU and linear parts only)."""

    def build(self, task: Task, seed: int) -> nn.Module:
        """A new model for ``task``; the same seed gives the same parameters, whatever torch's global generator is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._build(task)

    @abstractmethod
    def _build(self, task: Task) -> nn.Module:
        """Make the model with torch's global generator (seeded by ``build``)."""

    def losses(self, model: nn.Module, task: Task, batch: Batch, state: State | None) -> Losses:
        """Forward pass, loss and penalty on one batch; ``state`` None starts from the initial state."""
        outputs, state = model(batch.inputs, state)
        loss = task.loss(outputs, batch.targets)
        return Losses(loss, loss, state)

"""A ReLU net whose recurrent matrix stays orthogonal: torch's own parametrisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.utils.parametrizations import orthogonal

from pathsgd_lab.systems.plain import PlainSystem, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class OrthogonalRnnSystem(PlainSystem):
    """Plain ReLU net with an orthogonal recurrent matrix, the exponential of a skew-symmetric one.

    Every singular value is one, at every step of training. The start is the plain net's, made
    orthogonal.
    """

    name: ClassVar[str] = "orthogonal_rnn"
    title: ClassVar[str] = "RNN, orthogonal"

    def _build(self, task: Task) -> RecurrentNet:
        net = self._make(task, "relu")
        orthogonal(net.rnn, "weight_hh_l0")
        return net

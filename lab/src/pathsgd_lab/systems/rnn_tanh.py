"""RNN-tanh: the plain tanh net of the paper's language-model table, trained with Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.systems.plain import PlainSystem, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class RnnTanhSystem(PlainSystem):
    """Plain tanh net.

    Follows Neyshabur et al. (2016), section 5.3: 2048 units, Adam.  The paper gives initial values
    for its ReLU nets only; here the tanh net has the same.
    """

    name: ClassVar[str] = "rnn_tanh"
    title: ClassVar[str] = "RNN-tanh"

    def _build(self, task: Task) -> RecurrentNet:
        return self._make(task, "tanh")

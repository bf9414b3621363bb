"""RNN-ReLU: the plain ReLU net of the paper's language-model table, trained with Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.systems.plain import PlainSystem, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class RnnReluSystem(PlainSystem):
    """Plain ReLU net, ordinary steps: the same net and initial values as RNN-Path.

    Follows Neyshabur et al. (2016), section 5.3: 2048 units, recurrent U[-0.01, 0.01], others
    U[-0.2, 0.2], Adam.
    Deviates: biases, starting at zero, which the paper does not mention.
    """

    name: ClassVar[str] = "rnn_relu"
    title: ClassVar[str] = "RNN-ReLU"
    path_rules: ClassVar[bool] = True

    def _build(self, task: Task) -> RecurrentNet:
        return self._make(task, "relu")

"""IRNN: a ReLU net that starts from the identity (Le, Jaitly and Hinton, 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.systems.plain import PlainSystem, Recurrent, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class IrnnSystem(PlainSystem):
    """Plain ReLU net with W_rec = I, b = 0 and SGD.

    Follows Le et al. (2015) for the recurrent matrix and biases, and Neyshabur et al. (2016) for
    the other weights: U[-0.01, 0.01] on every task (Le et al. draw them from a Gaussian with
    standard deviation 0.001).
    """

    name: ClassVar[str] = "irnn"
    title: ClassVar[str] = "IRNN"
    optimiser: ClassVar[str] = "sgd"
    path_rules: ClassVar[bool] = True

    recurrent: Recurrent = "identity"
    """Initial recurrent matrix."""
    others_range: float | None = 0.01
    """Half-width of the uniform initial input and output weights; None: the paper's for the
    task."""

    def _build(self, task: Task) -> RecurrentNet:
        return self._make(task, "relu")

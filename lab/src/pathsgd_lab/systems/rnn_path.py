"""RNN-Path: a plain ReLU net trained with path normalisation (Neyshabur et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.systems.plain import PlainSystem, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class RnnPathSystem(PlainSystem):
    """Plain ReLU net, path-normalised steps.

    Follows section 5 of the paper: identity recurrent matrix and U[-0.01, 0.01] elsewhere on the
    synthetic tasks and
    MNIST, uniform matrices on text.  Deviates: the default optimiser is Path-Adam everywhere (the
    paper uses Path-SGD on the synthetic tasks and MNIST; say ``path-sgd`` for that), and there are
    biases, starting at zero.
    """

    name: ClassVar[str] = "rnn_path"
    title: ClassVar[str] = "RNN-Path"
    optimiser: ClassVar[str] = "path-adam"
    path_rules: ClassVar[bool] = True

    def _build(self, task: Task) -> RecurrentNet:
        return self._make(task, "relu")

"""np-RNN: starts from a normalised positive-definite matrix (Talathi and Vartak, 2015)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from pathsgd_lab.systems.plain import PlainSystem, Recurrent, RecurrentNet
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class NpRnnSystem(PlainSystem):
    """Plain ReLU net with W_rec = (A + I) / lambda_max(A + I), A = R^T R / H, R ~ N(0, 1).

    Largest eigenvalue 1, all others in (0, 1): one direction is kept, the rest decays.
    Follows Talathi and Vartak (2015) also in the input weights, alpha N(0, 1) / H, that is of
    standard deviation alpha / H and not alpha / sqrt(H), with alpha = sqrt(2) exp(1.2 / (max(H, 6)
    - 2.4)) (the factor of Sussillo and
    Abbott, 2014).  Deviates: output weights from N(0, 2 / (H + O)) (Glorot and Bengio, 2010), where
    public re-implementations differ among each other.  ``others_range`` replaces both by a uniform
    draw.
    """

    name: ClassVar[str] = "np_rnn"
    title: ClassVar[str] = "np-RNN"
    optimiser: ClassVar[str] = "rmsprop"
    path_rules: ClassVar[bool] = True

    recurrent: Recurrent = "normalised-positive"
    """Initial recurrent matrix."""
    others_range: float | None = None
    """Half-width of uniform initial input and output weights, instead of Talathi and Vartak's."""

    def _build(self, task: Task) -> RecurrentNet:
        net = self._make(task, "relu")
        if self.others_range is None:
            hidden = net.rnn.hidden_size
            alpha = math.sqrt(2.0) * math.exp(1.2 / (max(hidden, 6) - 2.4))
            with torch.no_grad():
                net.input_matrix.normal_(0.0, alpha / hidden)
                net.readout.weight.normal_(0.0, math.sqrt(2.0 / (hidden + task.output_size)))
        return net

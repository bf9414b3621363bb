"""LSTM (Hochreiter and Schmidhuber, 1997; with forget gates, Gers et al., 2000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pathsgd_lab.systems.gated import GatedNet, GatedSystem
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class LstmSystem(GatedSystem):
    """One LSTM layer.

    Follows Neyshabur et al. (2016), section 5.3: orthogonal recurrent matrices (one per gate; Saxe
    et al., 2013),
    U[-0.01, 0.01] elsewhere, 1024 units on text, Adam.  Deviates: the forget gate's bias starts at
    1 (Jozefowicz et al., 2015), the paper names no value; no peepholes.
    """

    name: ClassVar[str] = "lstm"
    title: ClassVar[str] = "LSTM"

    forget_bias: float = 1.0
    """Initial bias of the forget gate."""

    def _build(self, task: Task) -> GatedNet:
        net = self._make(task, "lstm")
        with torch.no_grad():
            # torch's order of gates: input, forget, cell, output.
            net.rnn.bias_ih_l0.view(4, -1)[1] = self.forget_bias
        return net

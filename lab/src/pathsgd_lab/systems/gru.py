"""GRU (Cho et al., 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pathsgd_lab.systems.gated import GatedNet, GatedSystem
from pathsgd_lab.tasks.base import Task


@dataclass(frozen=True)
class GruSystem(GatedSystem):
    """One GRU layer.

    Follows Cho et al. (2014) for the cell, with the LSTM's initial values of Neyshabur et al.
    (2016).  Deviates: torch's cell applies the reset gate after the recurrent product, n_t = tanh(W
    x_t + r_t * (U h_{t-1})).
    """

    name: ClassVar[str] = "gru"
    title: ClassVar[str] = "GRU"

    def _build(self, task: Task) -> GatedNet:
        return self._make(task, "gru")

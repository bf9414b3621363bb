"""Other optimisers in path coordinates, where rescaling of units does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

import pathsgd
from pathsgd.optim import InPathCoordinates
from pathsgd_lab.run.optimisers.base import GradientOptimiser
from pathsgd_lab.run.optimisers.path import PathOptimiser
from pathsgd_lab.run.optimisers.rivals import (
    LionOptimiser,
    MuonOptimiser,
    NAdamOptimiser,
    SoapOptimiser,
)
from pathsgd_lab.run.optimisers.standard import RmsPropOptimiser
from pathsgd_lab.systems import SequenceNet
from pathsgd_lab.tasks import Task

INNER: dict[str, type[GradientOptimiser]] = {
    "lion": LionOptimiser,
    "muon": MuonOptimiser,
    "nadam": NAdamOptimiser,
    "rmsprop": RmsPropOptimiser,
    "soap": SoapOptimiser,
}


@dataclass(frozen=True)
class InPathOptimiser(PathOptimiser):
    """Another optimiser in path coordinates (pathsgd.optim.InPathCoordinates), absolute units."""

    name: ClassVar[str] = "in-path"
    title: ClassVar[str] = "in path coordinates"

    inner: Literal["lion", "muon", "nadam", "rmsprop", "soap"] = "muon"
    """The optimiser."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """The optimiser, which decays weights itself, in the model's coordinates."""
        settings = self.shared(task, pathsgd.Metric(absolute=True))
        inner = INNER[self.inner](
            lr=settings.pop("lr"), clip=0.0, weight_decay=settings.pop("weight_decay")
        )
        return InPathCoordinates(inner.make(model, task), model, **settings)

"""Adam with other caps on the recurrent matrix, to compare with that on growth rates.

After each step, with T the length of the batch's sequences and c = ``cap_limit``:

    singular-values   every singular value of W_rec at most exp(c / T)
    radius            all of W_rec made smaller where its spectral radius exceeds exp(c / T)
    entries           every entry of W_rec within [-c, c]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.optimisers.base import GradientStepper
from pathsgd_lab.run.optimisers.standard import AdamOptimiser
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.systems.plain import RecurrentNet
from pathsgd_lab.tasks import Batch, State, Task

Cap = Literal["singular-values", "radius", "entries"]


def capped(weight: Tensor, cap: Cap, limit: float, steps: int) -> Tensor:
    """The matrix under a cap for sequences of so many steps."""
    if cap == "entries":
        return weight.clamp(-limit, limit)
    most = math.exp(limit / steps)
    if cap == "radius":
        return weight * min(
            1.0, most / max(float(torch.linalg.eigvals(weight).abs().amax()), 1e-30)
        )
    left, values, right = torch.linalg.svd(weight)
    return (left * values.clamp(max=most)) @ right


class CappedStepper(GradientStepper):
    """Caps the recurrent matrix after each step."""

    model: RecurrentNet

    def __init__(self, *arguments: Any, cap: Cap, limit: float) -> None:
        super().__init__(*arguments)
        self.cap, self.limit = cap, limit

    def step(self, batch: Batch, state: State | None) -> tuple[Tensor, State]:
        """See ``Stepper``."""
        result = super().step(batch, state)
        weight = self.model.rnn.weight_hh_l0.detach()
        if bool(weight.isfinite().all()):  # else the run has diverged, and its loss will say so
            weight.copy_(capped(weight, self.cap, self.limit, len(batch.inputs)))
        return result


@dataclass(frozen=True)
class CappedAdamOptimiser(AdamOptimiser):
    """Adam with a cap on the recurrent matrix that is not on its growth rate."""

    name: ClassVar[str] = "adam-capped"
    title: ClassVar[str] = "Adam, capped matrix"
    only_for: ClassVar[str | None] = "rnn_path"

    cap: Cap = "radius"
    """What is kept below the cap: singular values, the spectral radius, or the entries."""
    cap_limit: float = 3.0
    """c: the cap is exp(c / steps), for entries c itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cap_limit > 0.0:
            raise ValueError(
                f"cap_limit must be positive, got {self.cap_limit}; for no cap choose adam"
            )

    def stepper(self, system: System, model: SequenceNet, task: Task) -> CappedStepper:
        """Clip the Euclidean norm, step, cap."""
        optimiser = self.make(model, task)
        return CappedStepper(
            system,
            model,
            task,
            optimiser,
            self.clip,
            self.growth_limit,
            cap=self.cap,
            limit=self.cap_limit,
        )


OPTIMISERS[CappedAdamOptimiser.name] = CappedAdamOptimiser

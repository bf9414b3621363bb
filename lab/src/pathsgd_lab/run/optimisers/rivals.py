"""Common optimisers beside SGD and Adam, at their authors' settings but for rate, clip and decay.

Muon is torch's own; SOAP, Lion, schedule-free AdamW and Prodigy are those of the package
pytorch_optimizer (the extra ``rivals``).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import nn

from pathsgd_lab.errors import UsageError
from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.run.optimisers.together import Together
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.tasks import Task


def package() -> ModuleType:
    """pytorch_optimizer, if it is installed."""
    try:
        return importlib.import_module("pytorch_optimizer")
    except ModuleNotFoundError:
        raise UsageError(
            "this optimiser comes with the package pytorch_optimizer: install pathsgd[rivals]"
        ) from None


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that move."""
    return [p for p in model.parameters() if p.requires_grad]


@dataclass(frozen=True)
class MomentumOptimiser(GradientOptimiser):
    """SGD with momentum 0.9."""

    name: ClassVar[str] = "momentum"
    title: ClassVar[str] = "SGD, momentum 0.9"

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """torch's SGD."""
        return torch.optim.SGD(trained(model), self.lr, 0.9, 0.0, self.weight_decay, fused=True)


@dataclass(frozen=True)
class AdamWOptimiser(GradientOptimiser):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    name: ClassVar[str] = "adamw"
    title: ClassVar[str] = "AdamW"

    weight_decay: float = 0.01
    """Share of each parameter taken away per unit of learning rate."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """torch's AdamW."""
        return torch.optim.AdamW(
            trained(model), self.lr, weight_decay=self.weight_decay, fused=True
        )


@dataclass(frozen=True)
class NAdamOptimiser(GradientOptimiser):
    """Adam with Nesterov's momentum (Dozat, 2016)."""

    name: ClassVar[str] = "nadam"
    title: ClassVar[str] = "NAdam"

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """torch's NAdam."""
        return torch.optim.NAdam(
            trained(model), self.lr, weight_decay=self.weight_decay, foreach=True
        )


@dataclass(frozen=True)
class MuonOptimiser(GradientOptimiser):
    """Muon on hidden matrices, AdamW on the rest (Jordan et al., 2024).

    As its authors advise, input tables, the readout, biases and everything that is no matrix go to
    AdamW; the two share a rate, Muon's steps being scaled to the size of AdamW's.
    """

    name: ClassVar[str] = "muon"
    title: ClassVar[str] = "Muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth_limit:
            raise ValueError(
                "muon has no place for what the bound on growth rates keeps: leave growth_limit at "
                "0"
            )

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """torch's Muon beside torch's AdamW."""
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} | {
            id(model.readout.weight)
        }
        matrices = [p for p in trained(model) if p.ndim == 2 and id(p) not in tables]
        others = [p for p in trained(model) if not any(p is matrix for matrix in matrices)]
        decay = self.weight_decay
        members: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, self.lr, weight_decay=decay, fused=True)
        ]
        if matrices:
            muon = torch.optim.Muon(
                matrices, self.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
            )
            members.append(muon)
        return Together(*members)


@dataclass(frozen=True)
class SoapOptimiser(GradientOptimiser):
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al., 2024)."""

    name: ClassVar[str] = "soap"
    title: ClassVar[str] = "SOAP"

    lr: float = 3e-3
    """Learning rate at full height; the schedule and the curriculum multiply it."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """pytorch_optimizer's SOAP."""
        return _made("SOAP", model, lr=self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class LionOptimiser(GradientOptimiser):
    """Signs of momentum (Chen et al., 2023)."""

    name: ClassVar[str] = "lion"
    title: ClassVar[str] = "Lion"

    lr: float = 1e-4
    """Learning rate at full height; the schedule and the curriculum multiply it."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """pytorch_optimizer's Lion."""
        return _made("Lion", model, lr=self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class ProdigyOptimiser(GradientOptimiser):
    """Adam that estimates its own rate (Mishchenko and Defazio, 2023), times ``lr``."""

    name: ClassVar[str] = "prodigy"
    title: ClassVar[str] = "Prodigy"

    lr: float = 1.0
    """Factor on the estimated rate; the schedule and the curriculum multiply it."""

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """pytorch_optimizer's Prodigy."""
        return _made("Prodigy", model, lr=self.lr, weight_decay=self.weight_decay)


class AveragingStepper(GradientStepper):
    """Steps of a schedule-free optimiser, whose averaged parameters are the ones to judge."""

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """The averaged parameters."""
        optimiser: Any = self.optimiser
        optimiser.eval()
        try:
            yield
        finally:
            optimiser.train()


@dataclass(frozen=True)
class ScheduleFreeOptimiser(GradientOptimiser):
    """AdamW that averages in place of a schedule (Defazio et al., 2024): use a constant rate."""

    name: ClassVar[str] = "schedule-free"
    title: ClassVar[str] = "Schedule-free AdamW"

    lr: float = 2.5e-3
    """Learning rate at full height; the schedule and the curriculum multiply it."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Clip the Euclidean norm, then step; evaluate the average."""
        return AveragingStepper(
            system, model, task, self.make(model, task), self.clip, self.growth_limit
        )

    def make(self, model: SequenceNet, task: Task) -> torch.optim.Optimizer:
        """pytorch_optimizer's ScheduleFreeAdamW."""
        return _made("ScheduleFreeAdamW", model, lr=self.lr, weight_decay=self.weight_decay)


def _made(name: str, model: SequenceNet, **settings: Any) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = getattr(package(), name)(trained(model), **settings)
    return made

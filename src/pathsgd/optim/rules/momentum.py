"""Momentum on whitened gradients.

m <- momentum * m + u        d = m        or, Nesterov's, d = u + momentum * m        or d = u
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pathsgd.kernels.update import GRADIENT, MOMENTUM, NESTEROV, UpdateRule
from pathsgd.optim.rules import Fused, Rule, Settings


@dataclass
class MomentumState:
    """What a parameter remembers."""

    momentum_buffer: Tensor | None = None
    """m; None without momentum."""


class Momentum(Rule):
    """Settings: momentum, nesterov."""

    is_elementwise: ClassVar[bool] = True

    def check(self, settings: Settings) -> None:
        """0 <= momentum < 1; Nesterov's needs some."""
        if not 0 <= settings["momentum"] < 1:
            raise ValueError(f"momentum must be in [0, 1), got {settings['momentum']}")
        if settings["nesterov"] and settings["momentum"] == 0:
            raise ValueError("nesterov needs momentum")

    def init(self, like: Tensor, settings: Settings) -> MomentumState:
        """m = 0."""
        return MomentumState(torch.zeros_like(like) if settings["momentum"] else None)

    def direction(self, u: Tensor, state: MomentumState, settings: Settings) -> Tensor:
        """The oracle of the kernels."""
        momentum = settings["momentum"]
        if not momentum:
            return u
        if state.momentum_buffer is None:
            state.momentum_buffer = torch.zeros_like(u)
        m = state.momentum_buffer.mul_(momentum).add_(u)
        return u + momentum * m if settings["nesterov"] else m.clone()

    def fused(
        self, state: MomentumState, settings: Settings, lr: float, *, corrected: bool = True
    ) -> Fused:
        """The kernels' own momentum."""
        if not settings["momentum"]:
            return Fused(UpdateRule(GRADIENT), lr)
        kind = NESTEROV if settings["nesterov"] else MOMENTUM
        return Fused(UpdateRule(kind, momentum=settings["momentum"]), lr, ("momentum_buffer",))

"""Adam (Kingma & Ba 2015) on whitened gradients.

m <- beta1 * m + (1 - beta1) * u            v <- beta2 * v + (1 - beta2) * u^2
d = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pathsgd.kernels.update import ADAM, UpdateRule
from pathsgd.optim.rules import Fused, Rule, Settings


@dataclass
class AdamState:
    """What a parameter remembers: t, m, v."""

    step: int
    exp_avg: Tensor
    exp_avg_sq: Tensor


class Adam(Rule):
    """Settings: betas, eps."""

    is_elementwise: ClassVar[bool] = True
    powers: ClassVar[Mapping[str, int]] = {"exp_avg": 1, "exp_avg_sq": 2}

    def check(self, settings: Settings) -> None:
        """Both betas in [0, 1); eps >= 0."""
        if not all(0 <= beta < 1 for beta in settings["betas"]):
            raise ValueError(f"betas must be in [0, 1), got {settings['betas']}")
        if not 0 <= settings["eps"] < math.inf:
            raise ValueError(f"eps must be finite and not negative, got {settings['eps']}")

    def init(self, like: Tensor, settings: Settings) -> AdamState:
        """t = 0, m = v = 0."""
        return AdamState(0, torch.zeros_like(like), torch.zeros_like(like))

    def direction(self, u: Tensor, state: AdamState, settings: Settings) -> Tensor:
        """The oracle of the kernels."""
        (beta1, beta2), eps = settings["betas"], settings["eps"]
        state.step += 1
        m = state.exp_avg.lerp_(u, 1 - beta1)
        v = state.exp_avg_sq.mul_(beta2).addcmul_(u, u, value=1 - beta2)
        return m / (1 - beta1**state.step) / ((v / (1 - beta2**state.step)).sqrt() + eps)

    def fused(
        self, state: AdamState, settings: Settings, lr: float, *, corrected: bool = True
    ) -> Fused:
        """Both bias corrections moved into the length and eps: two passes over memory fewer."""
        (beta1, beta2), eps, step = settings["betas"], settings["eps"], state.step + 1
        moments = ("exp_avg", "exp_avg_sq")
        if not corrected:
            return Fused(UpdateRule(ADAM, betas=(beta1, beta2), eps=eps), lr, moments)
        correction = (1 - beta2**step) ** 0.5
        rule = UpdateRule(ADAM, betas=(beta1, beta2), eps=eps * correction)
        return Fused(rule, lr * correction / (1 - beta1**step), moments)

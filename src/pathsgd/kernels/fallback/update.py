"""The passes of an optimiser's step (operands.py has what they compute)."""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.kernels.operands import ADAM, GRADIENT, MOMENTUM, Operands, UpdateRule, compute_dtype


def square_sums(o: Operands) -> list[float]:
    return [float((g * o.whitening(i)).double().square().sum()) for i, g in enumerate(o.gradients)]


def moments(o: Operands, rule: UpdateRule) -> None:
    for index, first in enumerate(o.first):
        u = o.gradients[index] * o.whitening(index) * rule.factor
        if rule.direction != ADAM:
            first.mul_(rule.momentum).add_(u)
            continue
        if not rule.whitens:
            u.mul_(o.whitening(index))
        first.lerp_(u, 1 - rule.betas[0])
        o.second[index].mul_(rule.betas[1]).addcmul_(u, u, value=1 - rule.betas[1])


def direction(o: Operands, rule: UpdateRule, index: int) -> Tensor:
    return torch.where(o.whitening(index) == 0, 0.0, _direction(o, rule, index))


def _direction(o: Operands, rule: UpdateRule, index: int) -> Tensor:
    if rule.direction == MOMENTUM:
        return o.first[index]
    if rule.direction == ADAM:
        return o.first[index] / (o.second[index].sqrt() + rule.eps)
    u = o.gradients[index] * o.whitening(index)
    return (
        u
        if rule.direction == GRADIENT
        else u.mul_(rule.factor).add_(o.first[index], alpha=rule.momentum)
    )


def apply(o: Operands, rule: UpdateRule, alpha: float, keep: float) -> None:
    for index, p in enumerate(o.parameters):
        d = _direction(o, rule, index)
        step = d * o.whitening(index) if rule.whitens else d
        if compute_dtype(p.dtype) != p.dtype:
            p.copy_(p.to(step.dtype).mul_(keep).add_(step, alpha=alpha))
            continue
        if keep != 1:
            p.mul_(keep)
        p.add_(step, alpha=alpha)

"""A rank-one correction of one direction of a recurrent map."""

from __future__ import annotations

import torch
from torch import Tensor

from pathsgd.kernels.fallback.follow_directions import ITERATIONS, Map, positive

CONDITION = 30.0
"""Largest |l| |r| / (l . r) at which a left vector is used."""


def correct_direction(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    left = _left_vector(f, ray, start)
    above = (rate > cap) & rate.isfinite()
    factor = torch.where(above, (1 - cap / rate) / (left @ ray), 0.0)
    image = torch.where(above, f(ray[None])[0] / f.gain, 0.0) * f.scale
    f.weight.sub_(torch.outer(factor * image, left / f.scale))
    return torch.where(above, left, start)


def _left_vector(f: Map, ray: Tensor, start: Tensor) -> Tensor:
    """l of a direction, zero outside its support, with l . r > 0; r itself where there is none near enough."""
    support = ray > 0
    left = torch.where(support, start, 0.0)
    for _ in range(ITERATIONS):
        left = torch.where(support, f.back(left), 0.0)
        left = left / positive(left.norm())
    left = left * torch.where(left @ ray < 0, -1.0, 1.0)
    near = CONDITION * (left @ ray) >= left.norm() * ray.norm()
    return torch.where(near & (left @ ray > 0), left, ray)

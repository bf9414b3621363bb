"""Squares and their range."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def squares(weight: Tensor) -> tuple[Tensor, float, float]:
    squared = weight.square()
    if not weight.numel():
        return squared, 0.0, math.inf
    return squared, float(squared.amax()), float(torch.where(weight != 0, squared, math.inf).amin())

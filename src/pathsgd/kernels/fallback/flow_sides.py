"""What nodes say to their edges, from path flow."""

from __future__ import annotations

import torch
from torch import Tensor


def flow_sides(flow: Tensor, least: Tensor, exponent: float) -> tuple[Tensor, Tensor]:
    bounded = torch.maximum(flow, least)
    into = bounded.sqrt().sqrt() if exponent == 0.25 else bounded**exponent
    return torch.where(flow > 0, (flow / bounded).sqrt(), 1.0) * into, into

"""A convolution of one image with a kernel that is squared elementwise, and its derivatives, by torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.kernels.fallback.squares import squares


def squared_convolution(weight: Tensor, x: Tensor, sliding: Any) -> tuple[Tensor, float, float]:
    q, largest, least = squares(weight)
    return F.conv2d(x, q, None, sliding.stride, sliding.padding, sliding.dilation), largest, least


def squared_convolution_backward(
    weight: Tensor, x: Tensor, y_bar: Tensor, sliding: Any, *, into: bool, wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    with torch.enable_grad():
        ends = x.detach().requires_grad_(), weight.detach().square().requires_grad_()
        y = F.conv2d(*ends, None, sliding.stride, sliding.padding, sliding.dilation)
    x_bar, kappa = torch.autograd.grad(y, ends, y_bar)
    return x_bar if into else None, kappa if wanted else None

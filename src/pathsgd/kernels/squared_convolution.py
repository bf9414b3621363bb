"""A convolution of one image with a kernel that is squared elementwise, and its derivatives."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields
from pathsgd.kernels.squares import by_torch as squares_by_torch


class SquaredConvolutionCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "inputs outputs height width rows columns"),
        *fields(
            INT,
            "kernel_height kernel_width stride_y stride_x top left dilation_y dilation_x threads",
        ),
        *fields(POINTER, "w x y y_bar x_bar kappa"),
        *fields(REAL, "largest least"),
    ]


@dataclass(frozen=True)
class Sliding:
    """How a kernel moves over an image, vertically and horizontally."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def result(self, image: torch.Size, kernel: torch.Size) -> tuple[int, int]:
        """The height and width of what it makes of an image."""
        sizes = zip(image[-2:], kernel[-2:], self.stride, self.padding, self.dilation)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return height, width


def squared_convolution(weight: Tensor, x: Tensor, sliding: Sliding) -> tuple[Tensor, float, float]:
    """W^2 * x, the largest entry of W^2, and the least square of an entry that is not zero.

    The last is infinity where all are zero.

    weight: (outputs, inputs, kernel height, kernel width). x: (inputs, height, width), of the same
    dtype.
    """
    weight, x = weight.detach().contiguous(), x.detach().contiguous()
    if not _can(weight, x):
        return by_torch(weight, x, sliding)
    y = x.new_empty(len(weight), *sliding.result(x.shape, weight.shape))
    arguments = _call(weight, x, sliding, y=y)
    return y, arguments.largest, arguments.least


def squared_convolution_backward(
    weight: Tensor,
    x: Tensor,
    y_bar: Tensor,
    sliding: Sliding,
    *,
    into: bool = True,
    wanted: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """The derivatives in x and in W^2, as far as they are wanted, from that in W^2 * x."""
    weight, x, y_bar = (
        weight.detach().contiguous(),
        x.detach().contiguous(),
        y_bar.detach().contiguous(),
    )
    if not _can(weight, x, y_bar):
        return backward_by_torch(weight, x, y_bar, sliding, into=into, wanted=wanted)
    x_bar, kappa = (
        torch.empty_like(x) if into else None,
        torch.empty_like(weight) if wanted else None,
    )
    _call(weight, x, sliding, y_bar=y_bar, x_bar=x_bar, kappa=kappa)
    return x_bar, kappa


def _can(weight: Tensor, *others: Tensor) -> bool:
    dtype = weight.dtype
    if dtype not in native.C_TYPES or any(
        t.dtype is not dtype or not t.numel() for t in (weight, *others)
    ):
        return False
    return native.accepts(weight, *others)


def _call(
    weight: Tensor,
    x: Tensor,
    sliding: Sliding,
    y: Tensor | None = None,
    y_bar: Tensor | None = None,
    x_bar: Tensor | None = None,
    kappa: Tensor | None = None,
) -> SquaredConvolutionCall:
    outputs, inputs, *kernel = weight.shape
    shape = outputs, *sliding.result(x.shape, weight.shape)
    if min(*shape, *sliding.stride, *sliding.dilation) < 1 or min(sliding.padding) < 0:
        raise ValueError(
            f"{sliding} makes nothing of an image of shape {tuple(x.shape)} by a kernel of {kernel}"
        )
    dtype, image = weight.dtype, (inputs, *x.shape[1:])
    arguments = SquaredConvolutionCall(
        *(inputs, outputs, *x.shape[1:], *shape[1:], *kernel),
        *(*sliding.stride, *sliding.padding, *sliding.dilation, native.thread_count()),
        address(weight, dtype, outputs, inputs, *kernel),
        address(x, dtype, *image),
        address(y, dtype, *shape),
        address(y_bar, dtype, *shape),
        address(x_bar, dtype, *image),
        address(kappa, dtype, outputs, inputs, *kernel),
    )
    native.call("squared_convolution", arguments, dtype)
    return arguments


def by_torch(weight: Tensor, x: Tensor, sliding: Any) -> tuple[Tensor, float, float]:
    """`squared_convolution` in torch alone."""
    q, largest, least = squares_by_torch(weight)
    return F.conv2d(x, q, None, sliding.stride, sliding.padding, sliding.dilation), largest, least


def backward_by_torch(
    weight: Tensor, x: Tensor, y_bar: Tensor, sliding: Any, *, into: bool, wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """`squared_convolution_backward` in torch alone."""
    with torch.enable_grad():
        ends = x.detach().requires_grad_(), weight.detach().square().requires_grad_()
        y = F.conv2d(*ends, None, sliding.stride, sliding.padding, sliding.dilation)
    x_bar, kappa = torch.autograd.grad(y, ends, y_bar)
    return x_bar if into else None, kappa if wanted else None

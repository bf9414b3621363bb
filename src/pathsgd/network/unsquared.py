"""Weights of the squared network whose squares are not kept: matrices and kernels of convolutions.

A kernel, used once:

    y = W^2 * x     x-bar = (W^2)^T * y-bar     kappa1[o, i, k] = sum_s y-bar[o, s] x[i, s + k]

torch has no fast float64 convolution of one example. All numbers are nonnegative, so nothing
cancels: a sum in float32 is right up to rounding, unless products vanish below float32's range.
Each of the three is done in float32 if no product can be that small, or if the least sum is far
above all that could have vanished; otherwise in float64. For small images a kernel of our own reads
W and never writes W^2.

A matrix, applied to one row x at a time:

    y = W^2 x       x-bar = (W^2)^T y-bar       kappa1 = y-bar x^T

is read twice and never written: kappa1 stays an outer product. It is float64 throughout, because
memory is the bottleneck. Without kappa1 the matrix may be used several times, transposed (x W) or
not. A sharded matrix is gathered for each product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.distributed.spread import whole
from pathsgd.kernels.narrow import narrow
from pathsgd.kernels.squared_convolution import (
    Sliding,
    squared_convolution,
    squared_convolution_backward,
)
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.squares import squares
from pathsgd.kernels.whiten import Outer

Product = Callable[[Tensor, Tensor], Tensor]
"""(x, q) -> y, linear in both: a convolution with its stride, padding and groups."""

_TINY, _HUGE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
# What may have vanished is at most this share of a sum.
_SHARE = 1e-6
# The kernel of our own is the faster one for images of at most so many positions, and no fewer
# weights.
_POSITIONS, _WEIGHTS = 128, 1 << 14


class UnsquaredKernel:
    """A convolution's kernel W in float32 on the CPU that is used once.

    wanted: whether kappa1 is.
    anchor: what autograd is to differentiate in, so that kappa1 becomes known.
    """

    def __init__(self, weight: Tensor, *, wanted: bool = True) -> None:
        self.weight = weight.detach()
        self.anchor = torch.zeros((), dtype=torch.float64, requires_grad=wanted)
        self.wanted = wanted
        self._kappa1: Tensor | None = None
        self._mass: Tensor | None = None

    def of(
        self, x: Scaled, product: Product, outputs: int | None, sliding: Sliding | None = None
    ) -> Scaled:
        """product(x, W^2).

        outputs: the dimension of the result that has one entry for each row of W; None if there is
            none.
        sliding: how W moves, where the product is a plain convolution of images.
        """
        x = x.with_one_scale()
        y = _KernelProduct.apply(x.mantissa, self.anchor, self, product, outputs, sliding)
        return Scaled(y, x.log_scale).normalized()

    def kappa1(self) -> Tensor:
        """The derivative in W^2, float32 or float64; zero if W leads to no output."""
        return torch.zeros_like(self.weight) if self._kappa1 is None else self._kappa1

    def mass(self) -> Tensor | None:
        """The path mass that enters each row, float64; None if it is not known."""
        return self._mass


class _KernelProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        kernel: UnsquaredKernel,
        product: Product,
        outputs: int | None,
        sliding: Sliding | None,
    ) -> Tensor:
        ctx.kernel, ctx.outputs = kernel, outputs
        ctx.passage = _Passage(kernel.weight, x.detach(), product, sliding)
        y = ctx.passage.forth()
        ctx.y = y.detach()  # not y itself, which will hold this context
        return y

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        kernel: UnsquaredKernel = ctx.kernel
        back, kappa1 = ctx.passage.back(grads[0], ctx.needs_input_grad[0], kernel.wanted)
        if kernel.wanted:
            kernel._kappa1 = kappa1
            if ctx.outputs is not None:
                others = [d for d in range(ctx.y.dim()) if d != ctx.outputs % ctx.y.dim()]
                kernel._mass = (grads[0] * ctx.y).sum(others)
        return back, kernel.anchor.detach() if kernel.wanted else None, None, None, None, None


class _Passage:
    """One pass through a convolution and back.

    x and y-bar are float64. In float32 they are x * factor and y-bar / factor, so kappa1 needs no
    factor.
    """

    def __init__(
        self, weight: Tensor, x: Tensor, product: Product, sliding: Sliding | None
    ) -> None:
        self.weight, self.x, self.product = weight, x, product
        self.is_narrow = _float32_is_exact()
        self.sliding = sliding
        self.is_small = sliding is not None and _is_small(sliding, x, weight)

    def forth(self) -> Tensor:
        """y."""
        if self.is_narrow:
            x, self.factor, _, least = narrow(self.x)
            self.x_least = least * self.factor
            y = self._forth(x)
            if self._is_certain(self.x_least, 1.0, y):
                return y.double().div_(self.factor)
            self.is_narrow = False
        return self._applied(self.x, self.weight.double().square()).detach()

    def back(self, y_bar: Tensor, into: bool, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        """x-bar if `into`, and kappa1 if `wanted`."""
        if self.is_narrow:
            short, _, *ends = narrow(y_bar, 1 / self.factor)
            largest, least = (end / self.factor for end in ends)
            x_bar, kappa1 = self._back(short, into, wanted)
            is_certain = not wanted or (
                y_bar.numel() * largest < _HUGE and _no_product_vanishes(least, self.x_least)
            )
            if is_certain and (x_bar is None or self._is_certain(least, largest, x_bar)):
                return None if x_bar is None else x_bar.double().mul_(self.factor), kappa1
            self._applied(self.x, self.weight.double().square())
        return self._derivatives(y_bar, into, wanted)

    def _forth(self, x: Tensor) -> Tensor:
        """y in float32, with the range of W^2."""
        sliding, self.short = self.sliding, x
        if sliding is not None and self.is_small:
            y, self.q_largest, self.q_least = squared_convolution(
                self.weight, x.view(x.shape[-3:]), sliding
            )
            return y.view(*x.shape[:-3], *y.shape)
        q, self.q_largest, self.q_least = squares(self.weight)
        if sliding is None:
            return self._applied(x, q).detach()
        return F.conv2d(x, q, None, sliding.stride, sliding.padding, sliding.dilation)

    def _back(self, y_bar: Tensor, into: bool, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
        """x-bar and kappa1 in float32. W^2 is recomputed: all kernels squared are a second net."""
        x, sliding = self.short, self.sliding
        if sliding is None:
            return self._derivatives(y_bar, into, wanted)
        if not self.is_small:
            return _convolution_backward(y_bar, x, squares(self.weight)[0], sliding, into, wanted)
        image, seen = x.view(x.shape[-3:]), y_bar.view(y_bar.shape[-3:])
        x_bar, kappa1 = squared_convolution_backward(
            self.weight, image, seen, sliding, into=into, wanted=wanted
        )
        return None if x_bar is None else x_bar.view(x.shape), kappa1

    def _applied(self, x: Tensor, q: Tensor) -> Tensor:
        with torch.enable_grad():
            self.ends = x.requires_grad_(), q.requires_grad_()
            self.through = self.product(*self.ends)
        return self.through

    def _derivatives(
        self, y_bar: Tensor, into: bool, wanted: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        sources = [end for end, asked in zip(self.ends, (into, wanted)) if asked]
        found = iter(torch.autograd.grad(self.through, sources, y_bar)) if sources else iter(())
        del self.ends, self.through  # W^2 is as large as W, and the nets' other layers have theirs
        return next(found) if into else None, next(found) if wanted else None

    def _is_certain(self, least: float, largest: float, result: Tensor) -> bool:
        """Whether sums of products of W^2 with numbers from `least` to `largest` fit float32."""
        terms = self.weight.numel()
        if not self.q_largest * max(1.0, largest) * terms < _HUGE:
            return False
        if _no_product_vanishes(least, self.q_least):
            return True
        vanished = terms * _TINY * (1 + largest + self.q_largest)
        return not result.numel() or float(result.detach().amin()) * _SHARE > vanished


def _convolution_backward(
    y_bar: Tensor, x: Tensor, q: Tensor, sliding: Sliding, into: bool, wanted: bool
) -> tuple[Tensor | None, Tensor | None]:
    """torch's own, without a graph that is made for it alone."""
    is_one = x.dim() == 3
    if is_one:
        y_bar, x = y_bar[None], x[None]
    options = sliding.stride, sliding.padding, sliding.dilation, False, (0, 0), 1
    x_bar, kappa1, _ = torch.ops.aten.convolution_backward(
        y_bar, x, q, None, *options, (into, wanted, False)
    )
    return x_bar[0] if into and is_one else x_bar, kappa1


def _is_small(sliding: Sliding, x: Tensor, weight: Tensor) -> bool:
    """Whether one image is so small that the kernel of our own is the faster one."""
    if x.shape[:-3].numel() != 1 or weight.numel() < _WEIGHTS:
        return False
    return math.prod(sliding.result(x.shape, weight.shape)) <= _POSITIONS


def _no_product_vanishes(a: float, b: float) -> bool:
    """Whether float32 has all products of numbers from `a` and from `b` on, and those numbers."""
    return min(a, b, a * b) >= _TINY


def _float32_is_exact() -> bool:
    """Whether torch computes float32 convolutions in float32, not in a shorter format."""
    if torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision() != "highest":
        return False
    convolutions = getattr(torch.backends.mkldnn, "conv", None)  # since torch 2.9
    precision = getattr(convolutions, "fp32_precision", "none")
    return precision in ("none", "ieee")


# ---- matrices ------------------------------------------------------------------------------------


class UnsquaredMatrix:
    """A matrix W (n, m) in float32 on the CPU that is used once, or whose kappa1 is not wanted.

    wanted: whether kappa1 is.
    anchor: what autograd is to differentiate in, so that `left` becomes known.
    entered, through, left: x, y and the derivative in y, after a forward and a backward pass.
    """

    def __init__(self, weight: Tensor, *, wanted: bool = True) -> None:
        self.weight, self.wanted = weight.detach(), wanted
        self.anchor = torch.zeros((), dtype=torch.float64, requires_grad=wanted)
        self.entered: Tensor | None = None
        self.through: Tensor | None = None
        self.left: Tensor | None = None

    def of(self, x: Scaled, *, turned: bool = False) -> Scaled:
        """W^2 x; turned, (W^2)^T x, of which there is no kappa1."""
        x = x.with_one_scale()
        if self.wanted or x.mantissa.requires_grad:
            through = _MatrixProduct.apply(x.mantissa, self.anchor, self, turned)
        else:  # no derivative is needed
            through = _applied(self.weight, x.mantissa.reshape(-1).contiguous(), turned=turned)
            through = through.view(*x.shape[:-1], -1)
        return Scaled(through, x.log_scale).normalized()

    def kappa1(self) -> Outer:
        """The derivative in W^2; zero if W leads to no output."""
        if self.entered is None or self.left is None:
            n, m = self.weight.shape
            return Outer(
                torch.zeros(n, 1, dtype=torch.float64), torch.zeros(1, m, dtype=torch.float64)
            )
        return Outer(self.left[:, None], self.entered[None, :])

    def mass(self) -> Tensor | None:
        """The path mass that enters each row."""
        return None if self.left is None or self.through is None else self.left * self.through


class _MatrixProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, matrix: UnsquaredMatrix, turned: bool
    ) -> Tensor:
        entered = x.detach().reshape(-1).contiguous()
        through = _applied(matrix.weight, entered, turned=turned)
        ctx.matrix, ctx.shape, ctx.turned = matrix, x.shape, turned
        if matrix.wanted:
            assert not turned
            matrix.entered, matrix.through = entered, through
            through = through.clone()
        return through.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        matrix, left = ctx.matrix, grads[0].reshape(-1).contiguous()
        if matrix.wanted:
            matrix.left = left
        back = None
        if ctx.needs_input_grad[0]:
            back = _applied(matrix.weight, left, turned=not ctx.turned).view(ctx.shape)
        return back, torch.zeros_like(matrix.anchor) if matrix.wanted else None, None, None


def _applied(weight: Tensor, x: Tensor, *, turned: bool) -> Tensor:
    """W^2 x, or (W^2)^T x."""
    weight = whole(weight)
    if turned:
        result = squared_products(weight, None, x, into=False)[1]
    else:
        result = squared_products(weight, x, out=False)[0]
    assert result is not None
    return result

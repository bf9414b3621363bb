"""A matrix of parameters in the squared network, without its square being written out.

    y = W^2 x        x-bar = (W^2)^T y-bar        kappa1 = y-bar x^T        elementwise squares, one row x

A matrix that one step of the net applies to one row is read twice and nothing else: kappa1 stays the two vectors that
it is the outer product of. In float64, whatever the matrix: what is squared comes from memory once, so wider numbers
cost nothing. Where nobody wants kappa1 the net may use the matrix at many places, turned round (x W) or not. A matrix
that is spread over processes is gathered for each product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.distributed.spread import whole
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.whiten import Outer


class Unsquared:
    """A matrix W (n, m) in float32 on the CPU that is used once, or whose kappa1 is not wanted.

    wanted: whether kappa1 is.
    anchor: what autograd is to differentiate in, so that `left` becomes known.
    entered, through, left: x, y and the derivative in y, once there has been a pass forth and one back.
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
            through = _Product.apply(x.mantissa, self.anchor, self, turned)
        else:  # nobody will ask for a derivative
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


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, matrix: Unsquared, turned: bool) -> Tensor:
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

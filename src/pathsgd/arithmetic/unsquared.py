"""A matrix of parameters in the squared network, without its square being written out.

    y = W^2 x        x-bar = (W^2)^T y-bar        kappa1 = y-bar x^T        elementwise squares, one row x

A matrix that one step of the net applies to one row is read twice and nothing else: kappa1 stays the two vectors that
it is the outer product of. In float64, whatever the matrix: what is squared comes from memory once, so wider numbers
cost nothing. A matrix that is spread over processes is gathered for each of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathsgd._native import Outer, squared_products
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.arithmetic.spread import whole


class Unsquared:
    """A matrix W (n, m) in float32 on the CPU that is used once.

    anchor: what autograd is to differentiate in, so that `left` becomes known.
    entered, through, left: x, y and the derivative in y, once there has been a pass forth and one back.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach()
        self.anchor = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.entered: Tensor | None = None
        self.through: Tensor | None = None
        self.left: Tensor | None = None

    def of(self, x: Scaled) -> Scaled:
        """W^2 x."""
        x = x.with_one_scale()
        return Scaled(_Product.apply(x.mantissa, self.anchor, self), x.log_scale).normalized()

    def kappa1(self) -> Outer:
        """The derivative in W^2; zero if W leads to no output."""
        if self.entered is None or self.left is None:
            n, m = self.weight.shape
            return Outer(torch.zeros(n, 1, dtype=torch.float64), torch.zeros(1, m, dtype=torch.float64))
        return Outer(self.left[:, None], self.entered[None, :])

    def mass(self) -> Tensor | None:
        """The path mass that enters each row."""
        return None if self.left is None or self.through is None else self.left * self.through


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, matrix: Unsquared) -> Tensor:
        matrix.entered = x.detach().reshape(-1).contiguous()
        matrix.through, _ = squared_products(whole(matrix.weight), matrix.entered, out=False)
        ctx.matrix, ctx.shape = matrix, x.shape
        assert matrix.through is not None
        return matrix.through.clone().view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None]:
        matrix = ctx.matrix
        matrix.left = grads[0].reshape(-1).contiguous()
        back = None
        if ctx.needs_input_grad[0]:
            back = squared_products(whole(matrix.weight), None, matrix.left, into=False)[1]
            back = None if back is None else back.view(ctx.shape)
        return back, torch.zeros_like(matrix.anchor), None

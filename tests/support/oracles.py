"""Oracles by automatic differentiation of a plain function g(q), without rules or records."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SquaredNet = Callable[[dict[str, Tensor]], Tensor]
Named = dict[str, Tensor]


def squares(parameters: Named) -> Named:
    return {name: p.detach().square() for name, p in parameters.items()}


def gamma_sq(g: SquaredNet, parameters: Named) -> Tensor:
    return g(squares(parameters)).detach()


def kappa1(g: SquaredNet, parameters: Named) -> Named:
    """dg/dq."""
    q = {name: value.requires_grad_() for name, value in squares(parameters).items()}
    gradients = torch.autograd.grad(
        g(q), list(q.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(q, gradients))


def kappa(g: SquaredNet, parameters: Named) -> Named:
    """Half the diagonal of the Hessian of gamma^2 as a function of p."""
    found = {}
    for name, p in parameters.items():

        def gamma_sq_of(value: Tensor, name: str = name) -> Tensor:
            return g({**squares(parameters), name: value.square()})

        hessian = torch.autograd.functional.hessian(gamma_sq_of, p.detach())
        found[name] = hessian.reshape(p.numel(), p.numel()).diagonal().reshape(p.shape) / 2
    return found

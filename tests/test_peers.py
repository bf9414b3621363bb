"""kappa beside torch's own exact Hessian of gamma^2 as a function of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pathsgd
from support import models


@pytest.mark.parametrize("every_step", [False, True])
def test_kappa_is_half_the_diagonal_of_the_hessian(every_step: bool) -> None:
    """gamma^2 is the sum of the outputs of the model with squared weights, on ones."""
    torch.manual_seed(0)
    net = models.ReadRNN(2, 3, 2, every_step, num_layers=2).double()
    ones = torch.ones(4, 1, 2, dtype=torch.float64)
    names, sizes = zip(*((name, p.numel()) for name, p in net.named_parameters()))

    def gamma_sq(weights: Tensor) -> Tensor:
        parts = dict(zip(names, weights.split(sizes)))
        squares = {name: parts[name].view_as(p) ** 2 for name, p in net.named_parameters()}
        return torch.func.functional_call(net, squares, (ones,)).sum()

    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(gamma_sq(weights), pathsgd.gamma_sq(net, ones), rtol=1e-12, atol=0)
    diagonal = torch.func.hessian(gamma_sq)(weights).diagonal()
    kappa = pathsgd.kappa(net, ones, terms="both")
    expected = torch.cat([kappa[name].flatten() for name in names])
    torch.testing.assert_close(diagonal / 2, expected, rtol=1e-9, atol=1e-14)

"""The same numbers from what people use today: curvlinops' exact Hessian of gamma^2 as a function of the weights."""

from __future__ import annotations

import curvlinops
import pytest
import torch
from torch import Tensor, nn

import pathsgd
from support import models


class OnSquares(nn.Module):
    """gamma^2 as an ordinary torch function of the weights: the model itself with squared weights, on ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        squares = {name: p.square() for name, p in self.model.named_parameters()}
        return torch.func.functional_call(self.model, squares, (x,)).sum().reshape(1, 1)


class Itself(nn.Module):
    """A loss that is the prediction."""

    reduction = "sum"

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return (prediction - 0 * target).sum()


@pytest.mark.parametrize("every_step", [False, True])
def test_kappa_is_half_the_diagonal_of_curvlinops_hessian(every_step: bool) -> None:
    torch.manual_seed(0)
    net = models.ReadRNN(2, 3, 2, every_step, num_layers=2).double()
    ones = torch.ones(4, 1, 2, dtype=torch.float64)
    measured = OnSquares(net)
    parameters = dict(measured.named_parameters())
    data = [(ones, torch.zeros(1, 1, dtype=torch.float64))]
    hessian = curvlinops.HessianLinearOperator(
        measured, Itself(), list(parameters.values()), data, num_data=1
    )
    diagonal = (hessian @ torch.eye(hessian.shape[1], dtype=torch.float64)).diagonal()
    kappa = pathsgd.kappa(net, ones, terms="both")
    expected = torch.cat([kappa[name.removeprefix("model.")].flatten() for name in parameters])
    torch.testing.assert_close(diagonal / 2, expected, rtol=1e-9, atol=1e-14)

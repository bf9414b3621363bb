"""Batch norm in training: the metric reads no running statistics; rows before it keep lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pathsgd


def net(depth: int, units: int = 32, **options: object) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [
            nn.Linear(units if layers else 10, units),
            nn.BatchNorm1d(units, **options),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Linear(units, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    weights = torch.randn(10, 1, generator=generator)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 10, generator=generator)
        y = (x @ weights).relu().to(dtype)
        optimizer.zero_grad()
        loss = (model(x.to(dtype)) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def largest(model: nn.Module) -> float:
    return max(float(p.detach().abs().max()) for p in model.parameters())


@pytest.mark.parametrize("lr", [1e-3, 1e-2])
@pytest.mark.parametrize("make", [pathsgd.PathAdam, pathsgd.PathSGD])
def test_no_weight_outgrows_adams(make: type, lr: float) -> None:
    torch.manual_seed(0)
    ours = net(3)
    theirs = copy.deepcopy(ours)
    losses = train(ours, make(ours, lr=lr), 150)
    adams = train(theirs, torch.optim.Adam(theirs.parameters(), lr=lr), 150)
    assert largest(ours) < 10 * largest(theirs)
    assert make is pathsgd.PathSGD or losses[-1] < 1.5 * adams[-1]
    assert all(bool(b.isfinite().all()) for b in ours.buffers())


def test_running_statistics_are_not_read_while_training() -> None:
    model, x = net(2).double(), torch.rand(8, 10, dtype=torch.float64)
    before = pathsgd.kappa(model, x)
    for norm in (model[1], model[4]):
        norm.running_mean.fill_(torch.nan)
        norm.running_var.fill_(torch.inf)
    for name, value in pathsgd.kappa(model, x).items():
        assert torch.equal(value, before[name])


def test_a_norm_without_statistics_trains() -> None:
    torch.manual_seed(0)
    model = net(2, track_running_stats=False)
    losses = train(model, pathsgd.PathAdam(model, lr=1e-3), 60)
    assert losses[-1] < losses[0]


def test_training_does_not_feel_the_scale_of_rows_before_a_norm() -> None:
    """Rows times anything, eps out of the way: every batch's loss stays the same."""
    torch.manual_seed(0)
    ours = net(2, eps=1e-30).double()
    scaled = copy.deepcopy(ours)
    with torch.no_grad():
        for layer in (scaled[0], scaled[3]):
            factors = 10 ** (4 * torch.rand(32, dtype=torch.float64) - 2)
            layer.weight.mul_(factors[:, None])
            layer.bias.mul_(factors)
    losses = [train(m, pathsgd.PathAdam(m, lr=1e-2), 10) for m in (ours, scaled)]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-6, atol=0)


def test_a_step_keeps_the_length_of_rows_that_only_a_norm_reads() -> None:
    torch.manual_seed(0)
    model = net(1).double()
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 10, generator=generator, dtype=torch.float64)
    before = arriving(model[0])
    model(x).square().mean().backward()
    optimizer.step()
    torch.testing.assert_close(arriving(model[0]), before)


def arriving(layer: nn.Linear) -> Tensor:
    """Squared weight that enters each unit."""
    return layer.weight.detach().square().sum(1) + layer.bias.detach().square()


def test_rescaling_leaves_rows_before_a_norm_alone() -> None:
    """eps and the running statistics would tell: what is offered as a rescaling is exact."""
    model = net(2).double()
    x = torch.rand(16, 10, dtype=torch.float64)
    output = model(x)
    row = model[0].weight.detach().clone()
    pathsgd.random_rescaling(model, x)
    torch.testing.assert_close(model(x), output)
    assert torch.equal(model[0].weight.detach(), row)


def test_in_evaluation_mode_the_inference_form_stays() -> None:
    model = net(1).double()
    x = torch.rand(4, 10, dtype=torch.float64)
    model[1].running_var.fill_(4.0)
    q = {name: p.detach().square() for name, p in model.named_parameters()}
    arrives = q["0.weight"].sum(1) + q["0.bias"]
    expected = (q["1.weight"] * arrives / (4 + model[1].eps) + q["1.bias"]) @ q["3.weight"][0] + q[
        "3.bias"
    ][0]
    torch.testing.assert_close(pathsgd.gamma_sq(model.eval(), x), expected)

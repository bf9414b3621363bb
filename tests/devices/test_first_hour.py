"""A GPU user's first hour, on the test device: nothing fails, nothing has to be moved by hand."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import pathsgd
from support.device import DEVICE, to_cpu


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 8, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int
) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = (model(x) - x.sum((1, 2), keepdim=True)[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_first_hour() -> None:
    torch.manual_seed(0)
    model, x = Net().to(DEVICE), torch.rand(16, 6, 2).to(DEVICE)
    assert "rnn_relu" in str(pathsgd.explain(model, x))
    assert pathsgd.gamma_sq(model, x).device == DEVICE
    assert pathsgd.growth_rate(model, x).keys() == {"rnn.weight_hh_l0"}
    report = pathsgd.check_invariance(model, x, optimizer=lambda m: pathsgd.PathAdam(m))
    assert report.invariant(), report
    pathsgd.balance(model, x)
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    losses = train(model, optimizer, x, 30)
    assert losses[-1] < 0.5 * losses[0]
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again = Net().to(DEVICE)
    again.load_state_dict(saved["model"])
    resumed = pathsgd.PathAdam(again, lr=1e-2)
    resumed.load_state_dict(saved["optimizer"])
    train(model, optimizer, x, 5)
    train(again, resumed, x, 5)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(to_cpu(p), to_cpu(q))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision(dtype: torch.dtype) -> None:
    """The metric and the moments are those of single precision; the step is rounded once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE, dtype)
    x = torch.randn(16, 4).to(DEVICE, dtype)
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    before = to_cpu(model[0].weight)
    model(x).float().square().mean().backward()
    optimizer.step()
    state = optimizer.state[model[0].weight]
    assert state.dense_whitening().dtype == state.rule.exp_avg.dtype == torch.float32
    step = (
        state.rule.exp_avg / (state.rule.exp_avg_sq.sqrt() + 1e-8 * 0.1) * state.dense_whitening()
    )
    wanted = (
        before.float() - 1e-2 * to_cpu(step).float()
    )  # both corrections of the first step are 0.1
    assert to_cpu(model[0].weight).dtype == dtype
    torch.testing.assert_close(
        to_cpu(model[0].weight).float(), wanted.to(dtype).float(), rtol=0.02, atol=2e-3
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_run_in_half_precision_is_resumed(dtype: torch.dtype) -> None:
    """Metric and moments are loaded in float32: torch casts a state to its parameter's dtype."""
    torch.manual_seed(0)
    x = torch.rand(16, 6, 2).to(DEVICE, dtype)

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
            optimizer.step()

    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE, dtype)
    optimizer = pathsgd.PathAdam(model, lr=1e-2, refresh_every=2)
    steps(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE, dtype)
    again.load_state_dict(saved["model"])
    resumed = pathsgd.PathAdam(again, lr=1e-2, refresh_every=2)
    resumed.load_state_dict(saved["optimizer"])
    steps(model, optimizer)
    steps(again, resumed)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(to_cpu(p), to_cpu(q))

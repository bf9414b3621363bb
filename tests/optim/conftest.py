"""Small float64 models of three kinds with a batch and a loss, and the shared training loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class DeepRnn(nn.Module):
    """Two recurrent layers, read at the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 5, num_layers=2, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


class ConvResidual(nn.Module):
    """A convolutional stem, a residual block, an average over positions, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 4, 3, padding=1)
        self.inner = nn.Conv1d(4, 3, 3, padding=1)
        self.outer = nn.Conv1d(3, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        h = torch.relu(h + self.outer(torch.relu(self.inner(h))))
        return self.head(h.mean(-1))


class Loop(nn.Module):
    """A recurrence written by hand: plain parameters, used again at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(4, 3) / 2)
        self.w_rec = nn.Parameter(torch.eye(4) * 0.7 + torch.randn(4, 4) / 10)
        self.bias = nn.Parameter(torch.rand(4) / 3)
        self.w_out = nn.Parameter(torch.randn(2, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.relu(x[:, t] @ self.w_in.T + h @ self.w_rec.T + self.bias)
        return h @ self.w_out.T


SHAPES = {DeepRnn: (8, 4, 3), ConvResidual: (8, 2, 6), Loop: (8, 4, 3)}


@dataclass
class Case:
    """A model with a batch; `loss(model)` is the mean square error on it."""

    model: nn.Module
    x: Tensor
    y: Tensor

    def loss(self, model: nn.Module | None = None) -> Tensor:
        return (self.model if model is None else model)(self.x).sub(self.y).square().mean()

    def copy(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def train(self, optimizer: Any, steps: int, model: nn.Module | None = None) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            self.loss(model).backward()
            optimizer.step()


def make_case(kind: type[nn.Module]) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = kind().double()
        x = torch.randn(*SHAPES[kind], dtype=torch.float64)
        return Case(model, x, torch.randn(SHAPES[kind][0], 2, dtype=torch.float64))


@pytest.fixture(params=list(SHAPES), ids=lambda kind: kind.__name__)
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of model in turn."""
    return make_case(request.param)


@pytest.fixture
def rnn() -> Case:
    return make_case(DeepRnn)


@pytest.fixture
def mlp() -> Case:
    """Two linear layers: the quickest model that has something to rescale."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
        return Case(
            model, torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
        )


@pytest.fixture
def values() -> Callable[[nn.Module], Tensor]:
    """All parameters of a model as one vector, copied."""
    return lambda model: nn.utils.parameters_to_vector(model.parameters()).detach().clone()

"""Runs that are handed over to new optimisers, and must continue bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import pathsgd

Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMISERS: dict[str, Make] = {
    "PathAdam": lambda m: pathsgd.PathAdam(m, 0.02, refresh_every=3),
    "PathAdam, every step": lambda m: pathsgd.PathAdam(m, 0.02),
    "PathAdam, both terms": lambda m: pathsgd.PathAdam(m, 0.02, terms="both", refresh_every=3),
    "PathAdam, paper": lambda m: pathsgd.PathAdam(m, metric="paper", refresh_every=3),
    "PathAdam, between": lambda m: pathsgd.PathAdam(
        m, 0.02, metric=pathsgd.Metric(0.3), growth=0.5, refresh_every=3
    ),
    "PathSOAP": lambda m: pathsgd.PathSOAP(m, 0.02, refresh_every=3, precondition_frequency=4),
    "PathMuon": lambda m: pathsgd.PathMuon(m, 0.02, refresh_every=3),
    "PathSGD": lambda m: pathsgd.PathSGD(m, 0.05, refresh_every=3, clip=0.1),
    "PathSGD, momentum": lambda m: pathsgd.PathSGD(
        m, 0.05, momentum=0.9, growth=0.5, refresh_every=3
    ),
    "PathSGD, paper": lambda m: pathsgd.PathSGD(
        m, 1e-2, metric="paper", scale="sgd", refresh_every=3
    ),
}


class Reads(nn.Module):
    """A recurrent layer and what is read from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(2, 8, nonlinearity="relu"), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][-1])


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 1)
    )


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rnn": (Reads, (9, 6, 2)),
    "convolution": (images, (4, 2, 5, 5)),
    "linear": (rows, (6, 5)),
}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], steps: range
) -> None:
    for step in steps:
        x = torch.rand(shape, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).sub(x.mean()).square().mean().backward()
        optimizer.step()


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def expect_the_same_run(
    model: str, make: Make, steps: int, move: Callable[[Any, Any, Any, Any], None]
) -> None:
    """move(model, optimizer, new model, new optimizer) hands a run over to new ones."""
    new, shape = MODELS[model]
    torch.manual_seed(1)
    net = new()
    optimizer = make(net)
    train(net, optimizer, shape, range(steps))
    other = copy.deepcopy(net)
    for p in other.parameters():
        p.grad = None
    again = make(other)
    move(net, optimizer, other, again)
    train(net, optimizer, shape, range(steps, steps + 7))
    train(other, again, shape, range(steps, steps + 7))
    for a, b in zip(values(net), values(other)):
        assert torch.equal(a, b)

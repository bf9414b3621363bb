"""A net rescaled by powers of two trains bitwise alike: no rounding depends on units' scales."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pathsgd


class Reads(nn.Module):
    """A recurrent layer, and what is read from its last state."""

    def __init__(self, rnn: nn.Module, width: int) -> None:
        super().__init__()
        self.rnn, self.out = rnn, nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][-1])


class Loop(nn.Module):
    """A loop over a cell, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.RNNCell(2, 12, nonlinearity="relu"), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 12)
        for step in x:
            h = self.cell(step, h)
        return self.out(h)


def relu_rnn(kind: type[nn.Module], layers: int = 1) -> nn.Module:
    return Reads(kind(2, 12, layers, nonlinearity="relu"), 12)


SEQUENCES, ROWS, IMAGES = (20, 6, 2), (6, 5), (4, 2, 6, 6)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "torch.nn.RNN": (lambda: relu_rnn(nn.RNN), SEQUENCES),
    "pathsgd.nn.RNN": (lambda: relu_rnn(pathsgd.nn.RNN), SEQUENCES),
    "two layers": (lambda: relu_rnn(nn.RNN, 2), SEQUENCES),
    "both directions": (lambda: Reads(nn.RNN(2, 8, nonlinearity="relu", bidirectional=True), 16),
                        SEQUENCES),
    "loop": (Loop, SEQUENCES),
    "dense": (lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(),
                                    nn.Linear(7, 1)), ROWS),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(48, 1)
        ),
        IMAGES,
    ),
}  # fmt: skip


MEASURED_TWICE = ("two layers", "both directions")
"""float32, and float64 where float32 could lose a small number, depending on units' scales."""


def losses(
    net: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], steps: int
) -> list[float]:
    draw, found = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        x = torch.rand(shape, generator=draw)
        y = x.reshape(-1)[: net(x).numel()].reshape(net(x).shape)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    "optimiser", [pathsgd.PathAdam, pathsgd.PathSGD, pathsgd.PathSOAP, pathsgd.PathMuon]
)
@pytest.mark.parametrize("name", NETS)
def test_rescaling_by_powers_of_two_changes_no_bit(
    name: str, optimiser: type[torch.optim.Optimizer]
) -> None:
    make, shape = NETS[name]
    reach = 1e3 if name not in MEASURED_TWICE else 10.0
    torch.manual_seed(0)
    net = make()
    for key, p in net.named_parameters():
        if "weight_hh" in key:
            nn.init.eye_(p)
    twin = copy.deepcopy(net)
    pathsgd.random_rescaling(
        twin, torch.zeros(shape), low=1 / reach, high=reach, powers_of_two=True
    )
    assert any(not torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters()))
    ours, theirs = (losses(n, optimiser(n, lr=0.03), shape, 60) for n in (net, twin))  # type: ignore[call-arg]
    assert ours == theirs

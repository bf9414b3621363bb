"""Whitenings as large as their parameters are freed between measurements: bitwise equal steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.metric import whitening
from pathsgd.optim.state import RELEASED


class Heads(nn.Module):
    """Convolutions with two heads, of which a pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3),
            nn.ReLU(),
        )
        self.heads = nn.ModuleList([nn.Conv2d(6, 5, 3, bias=False), nn.Conv2d(6, 5, 2, bias=False)])
        self.out, self.which = nn.Linear(5, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.heads[self.which](self.body(x))).mean((2, 3)))


X = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(1))
MAKE = {
    "adam": lambda m: pathsgd.PathAdam(m, lr=1e-2),
    "sgd": lambda m: pathsgd.PathSGD(m, lr=1e-2, momentum=0.9),
    "between": lambda m: pathsgd.PathAdam(m, lr=1e-2, metric=pathsgd.Metric(0.3)),
    "paper": lambda m: pathsgd.PathSGD(m, lr=1e-4, metric="paper"),
}


def trained(
    make, which, large, monkeypatch, *, reload: bool = False
) -> tuple[nn.Module, torch.optim.Optimizer]:
    monkeypatch.setattr(whitening, "LARGE", large)
    torch.manual_seed(0)
    model = Heads()
    optimizer = make(model)
    for step, head in enumerate(which):
        model.which = head
        optimizer.zero_grad(set_to_none=False)
        model(X).square().mean().backward()
        optimizer.step()
        if reload and step == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make(model)
            optimizer.load_state_dict(saved)
    return model, optimizer


def let_go(optimizer: torch.optim.Optimizer) -> int:
    return sum(state.age == RELEASED for state in optimizer.state.values())


@pytest.mark.parametrize("reload", [False, True])
@pytest.mark.parametrize("kind", MAKE)
def test_the_same_steps(kind: str, reload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, keeping = trained(MAKE[kind], [0] * 6, 1 << 40, monkeypatch)
    freed, freeing = trained(MAKE[kind], [0] * 6, 1, monkeypatch, reload=reload)
    assert let_go(keeping) == 0 and let_go(freeing) >= 3
    for a, b in zip(kept.parameters(), freed.parameters()):
        assert torch.equal(a, b)


def test_a_pass_that_leaves_a_part_out_measures_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other head has zero gradients and moments: it moves by a metric one step newer."""
    for which in ([0, 0, 1], [0, 0, 1, 0, 1]):
        kept, _ = trained(MAKE["adam"], which, 1 << 40, monkeypatch)
        freed, freeing = trained(MAKE["adam"], which, 1, monkeypatch)
        assert let_go(freeing) == 0  # two structures: all is kept
        for a, b in zip(kept.parameters(), freed.parameters()):
            torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)


def test_a_state_without_its_metric_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However seldom the optimiser that goes on with it measures."""
    model, optimizer = trained(MAKE["adam"], [0] * 3, 1, monkeypatch)
    seldom = pathsgd.PathAdam(copy.deepcopy(model), lr=1e-2, refresh_every=10)
    seldom.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one in (optimizer, seldom):
        one.zero_grad()
        one.model(X).square().mean().backward()
        one.step()
    for a, b in zip(optimizer.model.parameters(), seldom.model.parameters()):
        assert torch.equal(a, b)
    assert let_go(seldom) == 0

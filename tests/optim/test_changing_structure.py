"""A forward pass that has changed at the same shapes: every parameter with a gradient moves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pathsgd


class Blocks(nn.Module):
    """Residual blocks, of which forward runs some."""

    def __init__(self, choose: Callable[[Blocks, int], bool], depth: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])
        self.choose, self.step = choose, 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        for k, block in enumerate(self.blocks):
            if self.choose(self, k):
                h = h + torch.relu(block(h))
        return self.last(h)


CHOICES: dict[str, Callable[[Blocks, int], bool]] = {
    "a depth that grows": lambda m, k: k < m.step,
    "one in turn": lambda m, k: k == m.step % len(m.blocks),
    "torch's dice": lambda m, k: bool(torch.rand(()) < 0.5),
    "Python's dice": lambda m, k: random.random() < 0.5,
}


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, *inputs: Tensor) -> set[str]:
    """Names of the parameters that had a gradient and did not move."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    result = model(*inputs)
    (result if isinstance(result, Tensor) else result[0]).square().mean().backward()
    optimizer.step()
    grads = (
        (name, p)
        for name, p in model.named_parameters()
        if p.grad is not None and bool(p.grad.any())
    )
    return {name for name, p in grads if torch.equal(p.detach(), before[name])}


@pytest.mark.parametrize("make", [pathsgd.PathAdam, pathsgd.PathSGD])
@pytest.mark.parametrize("name", list(CHOICES))
def test_whatever_has_a_gradient_moves(name: str, make: type) -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = Blocks(CHOICES[name])
    optimizer = make(model, lr=1e-2)
    for step in range(12):
        model.step = step
        assert one_step(model, optimizer, torch.rand(5, 3)) == set(), step


def test_the_metric_is_that_of_the_pass_that_ran() -> None:
    """A net whose depth has grown steps as one that was that deep from the start."""
    torch.manual_seed(0)
    model = Blocks(CHOICES["a depth that grows"]).double()
    model.step = 3
    x = torch.rand(5, 3, dtype=torch.float64)
    fresh = pathsgd.PathAdam(
        model, lr=0.0, metric="relative"
    )  # which remembers nothing of earlier passes
    one_step(model, fresh, x)
    expected = {n: fresh.state[p].dense_whitening().clone() for n, p in model.named_parameters()}
    grown = pathsgd.PathAdam(model, lr=0.0, metric="relative")
    for step in range(4):
        model.step = step
        one_step(model, grown, x)
    for name, p in model.named_parameters():
        torch.testing.assert_close(grown.state[p].dense_whitening(), expected[name])


def test_a_loop_as_long_as_an_attribute_says() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out, self.turns = nn.Linear(4, 4), nn.Linear(4, 1), 1

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.turns):
                x = torch.relu(self.cell(x))
            return self.out(x)

    model, x = Loop(), torch.rand(3, 4)
    optimizer = pathsgd.PathAdam(model, lr=0.0)
    one_step(model, optimizer, x)
    short = optimizer.log_gamma_sq
    model.turns = 3
    one_step(model, optimizer, x)
    assert optimizer.log_gamma_sq != short
    torch.testing.assert_close(
        torch.tensor(optimizer.log_gamma_sq), pathsgd.log_gamma_sq(model, x).float()
    )


def test_a_layer_is_replaced() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.rand(5, 3)
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    one_step(model, optimizer, x)
    model[2] = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(3):
        assert one_step(model, optimizer, x) == set()


def test_a_net_grows() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.rand(5, 3)
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    one_step(model, optimizer, x)
    model.append(nn.Linear(4, 2))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(3):
        assert one_step(model, optimizer, x) == set()


def test_an_unchanged_net_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter among the attributes does not make it another net."""

    class Counting(nn.Sequential):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return super().forward(x)

    from pathsgd.network.record.recorder import Recorder

    made: list[int] = []
    plain = Recorder.__init__
    monkeypatch.setattr(
        Recorder, "__init__", lambda self, *a, **k: (made.append(1), plain(self, *a, **k))[1]
    )
    model = Counting(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    for _ in range(3):
        one_step(model, optimizer, torch.rand(5, 3))
    settled = len(made)
    for _ in range(5):
        one_step(model, optimizer, torch.rand(5, 3))
    assert len(made) == settled

"""Parameters that only the loss reads, and units through which next to nothing flows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pathsgd


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, loss=None
) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    y = x[:, :1].relu() - x[:, 1:2].relu()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = (model(x) - y).square().mean() if loss is None else loss(model, x, y)
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses


def test_a_parameter_that_only_the_loss_reads_moves_as_adam_moves_it() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
            self.log_std = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    def likelihood(m: Policy, x: Tensor, y: Tensor) -> Tensor:
        return -torch.distributions.Normal(m(x), m.log_std.exp()).log_prob(y).mean()

    torch.manual_seed(0)
    ours = Policy()
    theirs = copy.deepcopy(ours)
    with pytest.warns(RuntimeWarning, match=r"log_std.*Euclidean"):
        trained(ours, pathsgd.PathAdam(ours, lr=1e-2, betas=(0.9, 0.999)), 1, likelihood)
    trained(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-2), 1, likelihood)
    torch.testing.assert_close(ours.log_std, theirs.log_std)


def net(head: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    with torch.no_grad():
        model[2].weight.mul_(head)
    return model


@pytest.mark.parametrize("head", [0.0, 1e-30, 1e-12, 1e-6, 1e-3])
def test_a_head_of_any_size_trains(head: float) -> None:
    ours, theirs = net(head), net(head)
    losses = trained(ours, pathsgd.PathAdam(ours, lr=1e-3, metric="relative"), 200)
    trained(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3), 200)
    largest = [max(float(p.detach().abs().max()) for p in m.parameters()) for m in (ours, theirs)]
    assert largest[0] < 10 * largest[1]
    assert max(losses) < 2 * losses[0]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("head", [0.0, 1e-30, 1e-12, 1e-6, 1e-3])
def test_a_head_of_any_size_trains_as_fast_as_with_adam_in_absolute_units(head: float) -> None:
    """A small head and a small rescaled net are one function: layers below take larger steps."""
    ours, theirs = net(head), net(head)
    losses = trained(ours, pathsgd.PathAdam(ours, lr=1e-3), 200)
    adams = trained(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3), 200)
    assert max(losses) <= losses[0] and losses[-1] < 1.2 * adams[-1]
    with torch.no_grad():
        pathsgd.balance(ours, torch.zeros(1, 8))
        pathsgd.balance(theirs, torch.zeros(1, 8))
    largest = [max(float(p.detach().abs().max()) for p in m.parameters()) for m in (ours, theirs)]
    assert largest[0] < 2 * largest[1]


def test_the_step_is_continuous_in_the_size_of_the_head() -> None:
    """A step's effect at a zero head is the limit of its effect at small heads."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2)).double()
    found = []
    for head in (0.0, 1e-20, 1e-12):
        model = net(head).double()
        optimizer = pathsgd.PathAdam(model, lr=1e-2, metric="relative")
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        found.append(model(x).detach())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found[2], found[0], rtol=1e-2, atol=1e-4)


def test_low_rank_adapters_train() -> None:
    class Adapted(nn.Module):
        """W + B A with B = 0 at the start, W frozen."""

        def __init__(self) -> None:
            super().__init__()
            self.base, self.out = (
                nn.Linear(8, 32).requires_grad_(False),
                nn.Linear(32, 1).requires_grad_(False),
            )
            self.a, self.b = nn.Parameter(torch.randn(4, 8) / 3), nn.Parameter(torch.zeros(32, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.base(x) + x @ self.a.T @ self.b.T))

    torch.manual_seed(0)
    ours = Adapted()
    theirs = copy.deepcopy(ours)
    losses = trained(ours, pathsgd.PathAdam(ours, lr=1e-2), 150)
    adams = trained(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-2), 150)
    assert losses[-1] - adams[-1] < 0.25 * (adams[0] - adams[-1])


def test_a_head_behind_the_measured_output_moves() -> None:
    class Tagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = (
                nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
                nn.Linear(8, 1),
            )

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.body(x)
            return {"hidden": h, "logits": self.head(torch.tanh(h))}

    model = Tagged()
    optimizer = pathsgd.PathAdam(model, lr=1e-2, output="hidden")
    before = model.head.weight.detach().clone()
    model(torch.rand(4, 8))["logits"].square().mean().backward()
    with pytest.warns(RuntimeWarning, match="head.weight"):
        optimizer.step()
    assert bool((model.head.weight != before).all())


def test_the_absolute_form_stays_invariant_when_an_entry_comes_alive() -> None:
    """A column of zeros in the head: its units' incoming weights are on no path at step 1."""

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)
        ).double()
        with torch.no_grad():
            model[2].weight[:, :2] = 0
        return model

    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(3)).double()
    ours, twin = make(), make()
    pathsgd.random_rescaling(twin, x, low=0.1, high=10, generator=torch.Generator().manual_seed(4))
    for model in (ours, twin):
        optimizer = pathsgd.PathAdam(model, lr=1e-2, metric="absolute")
        for _ in range(5):
            optimizer.zero_grad()
            (model(x) - x[:, :1].relu()).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(twin(x), ours(x), rtol=1e-6, atol=1e-8)

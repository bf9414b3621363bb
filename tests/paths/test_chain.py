"""gamma^2 of a chain of matrices against the general route."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.metric.geometry import Geometry
from pathsgd.network.record.record import record
from pathsgd.paths import chain


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, with operations in the middle."""

    def __init__(self, middle: str = "nothing", *, bias: bool = True) -> None:
        super().__init__()
        self.one, self.two, self.middle = nn.Linear(7, 5, bias), nn.Linear(5, 3, bias), middle

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.two(torch.relu(self.one(x))))
        if self.middle == "skip":
            h = h + h
        elif self.middle == "dropout":
            h = nn.functional.dropout(h, 0.5)
        elif self.middle == "factor":
            h = 2 * h
        elif self.middle == "view":
            h = h @ self.two.weight.t().t()
            return torch.relu(h) @ self.one.weight
        return torch.relu(h @ self.two.weight) @ self.one.weight


def measured(model: nn.Module, *, free_only: bool) -> float:
    return (
        Geometry(model).measure([torch.rand(4, 7)], exact=False, free_only=free_only).log_gamma_sq
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("middle", ["nothing", "dropout"])
def test_the_chain_has_the_gamma_sq_of_the_general_route(middle: str, bias: bool) -> None:
    torch.manual_seed(0)
    model = Tied(middle, bias=bias)
    links = chain.chain(record(model, (torch.rand(4, 7),)))
    assert links is not None and [link.turned for link in links] == [False, False, True, True]
    found = chain.log_gamma_sq(links, dict(model.named_parameters()))
    assert found == pytest.approx(pathsgd.log_gamma_sq(model, torch.rand(4, 7)).item(), rel=1e-12)
    assert measured(model, free_only=True) == found
    assert measured(model, free_only=False) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("middle", ["skip", "factor", "view"])
def test_anything_else_is_no_chain(middle: str) -> None:
    model = Tied(middle)
    assert chain.chain(record(model, (torch.rand(4, 7),))) is None
    assert measured(model, free_only=True) == pytest.approx(
        measured(model, free_only=False), rel=1e-12
    )


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30, torch.nan])
def test_numbers_that_leave_the_range_are_the_general_route_s(size: float) -> None:
    model = Tied(bias=False)
    links = chain.chain(record(model, (torch.rand(4, 7),)))
    with torch.no_grad():
        model.one.weight.mul_(size)
        model.two.weight.mul_(size)
    assert chain.log_gamma_sq(links, dict(model.named_parameters())) is None


def test_other_dtypes_are_the_general_route_s() -> None:
    model = Tied().double()
    links = chain.chain(record(model, (torch.rand(4, 7, dtype=torch.float64),)))
    assert links is not None and chain.log_gamma_sq(links, dict(model.named_parameters())) is None


def test_a_net_that_can_be_rescaled_is_measured() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 7))
    geometry = Geometry(model)
    assert geometry.structure([torch.rand(4, 7)]).links is None


def test_training_has_the_same_bits_as_by_the_general_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finals = []
    for _ in range(2):
        torch.manual_seed(0)
        model, x = Tied(), torch.rand(4, 7)
        optimizer = pathsgd.PathAdam(model, lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
        finals.append([p.detach().clone() for p in model.parameters()])
        monkeypatch.setattr(chain, "log_gamma_sq", lambda *_: None)
    assert all(torch.equal(a, b) for a, b in zip(*finals))

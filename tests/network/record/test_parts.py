"""Models measured by their parts: operations between or after the parts are accepted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd import UnsupportedOperation


class Coder(nn.Module):
    """Between its halves stands a standard deviation, made by exp."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.decoder = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return (
            self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)),
            mean,
            log_variance,
        )


class Policy(nn.Module):
    """What it returns is a sample of a distribution, which looks at its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        self.actor, self.critic = nn.Linear(8, 2), nn.Linear(8, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        value, mean = self.critic(h), self.actor(h)
        spread = self.log_std.exp()
        if bool((spread * mean.abs().exp() <= 0).any()):
            raise ValueError("no distribution")
        return torch.distributions.Normal(mean, spread).sample(), value


def test_halves_with_something_unsupported_between_them() -> None:
    x = torch.randn(5, 6)
    with pytest.raises(UnsupportedOperation, match="exp"):
        pathsgd.gamma_sq(Coder(), x)
    model = Coder()
    together = float(pathsgd.gamma_sq(model, x, output=["encoder", "decoder"]))
    apart = float(pathsgd.gamma_sq(model.encoder, x)) + float(
        pathsgd.gamma_sq(model.decoder, x[:, :2])
    )
    assert together == pytest.approx(apart)
    report = pathsgd.check_invariance(
        model, x, optimizer=lambda m: pathsgd.PathAdam(m, output=["encoder", "decoder"]), steps=2,
        output=["encoder", "decoder"],
    )  # fmt: skip
    assert report.ok and report.free_nodes == 16


def test_what_comes_after_the_measured_parts_is_not_looked_at() -> None:
    torch.manual_seed(0)
    model, x = Policy(), torch.randn(5, 3)
    with pytest.raises(UnsupportedOperation):
        pathsgd.gamma_sq(model, x, output="nobody")
    assert pathsgd.explain(model, x, output=["actor", "critic"]).problem is None
    optimizer = pathsgd.PathAdam(model, output=["actor", "critic"])
    before = [p.detach().clone() for p in model.body.parameters()]
    value = model(x)[1]
    value.square().mean().backward()
    optimizer.step()
    assert all(bool((p != b).any()) for p, b in zip(model.body.parameters(), before))

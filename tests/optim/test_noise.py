"""Random numbers made in forward are noise: added, they carry no path; as factors, they pass it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pathsgd


class Noisy(nn.Module):
    """Linear, something random, ReLU, Linear."""

    def __init__(self, disturb: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.disturb = nn.Linear(3, 6), nn.Linear(6, 2), disturb

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(torch.relu(self.disturb(h) if self.training else h))


def drawn(h: Tensor) -> Tensor:
    h = h.clone()
    h += 0.1 * h.new_empty(h.shape).normal_()
    return h


DISTURBANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "randn_like": lambda h: h + 1e-6 * torch.randn_like(h),
    "randn": lambda h: 0.1 * torch.randn(h.shape, dtype=h.dtype) + h,
    "normal": lambda h: torch.add(h, torch.normal(0.0, 1.0, h.shape, dtype=h.dtype), alpha=0.1),
    "drawn in place": drawn,
    "a mask": lambda h: h * (torch.rand_like(h) > 0.3) / 0.7,
    "a mask of numbers": lambda h: h * torch.bernoulli(torch.full_like(h, 0.7)).div(0.7),
    "filled by a mask": lambda h: h.masked_fill(torch.rand_like(h) < 0.3, 0.0),
    "chosen by a mask": lambda h: torch.where(torch.rand_like(h) < 0.3, 0.5 * h, h),
    "a factor": lambda h: h * (1 + 0.1 * torch.randn_like(h)),
}


@pytest.mark.parametrize("name", list(DISTURBANCES))
def test_noise_changes_neither_the_metric_nor_the_free_nodes(name: str) -> None:
    noisy = Noisy(DISTURBANCES[name]).double()
    x = torch.rand(4, 3, dtype=torch.float64)
    assert pathsgd.node_spaces(noisy, x).count == 6
    report = pathsgd.check_invariance(noisy, x, optimizer=pathsgd.PathAdam, steps=5)
    assert report.ok, str(report)
    if "mask" not in name or name == "filled by a mask":  # the others also multiply by a number
        torch.testing.assert_close(pathsgd.gamma_sq(noisy, x), pathsgd.gamma_sq(noisy.eval(), x))


def test_the_noise_of_a_learnt_size_trains_that_size() -> None:
    """w = mean + spread * noise, as in noisy nets: both parameters weight the same edges."""

    class NoisyLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.spread = (
                nn.Parameter(torch.randn(6, 3)),
                nn.Parameter(torch.full((6, 3), 0.1)),
            )
            self.out = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.mean + self.spread * torch.randn_like(self.mean)
            return self.out(torch.relu(x @ weight.t()))

    model = NoisyLinear()
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    before = model.spread.detach().clone()
    model(torch.rand(5, 3)).square().mean().backward()
    optimizer.step()
    assert bool((model.spread != before).any())


def test_what_starts_from_noise_has_paths() -> None:
    """A generator that draws its own input."""

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, like: Tensor) -> Tensor:
            noise = torch.randn(like.shape[0], 4, dtype=like.dtype)
            return self.second(torch.relu(self.first(noise)))

    model = Generator()
    assert pathsgd.node_spaces(model, torch.ones(3, 1)).count == 8
    assert bool((pathsgd.kappa(model, torch.ones(3, 1))["first.weight"] > 0).all())


def test_explain_names_what_pins_a_unit() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(x) + 0.5))

    report = str(pathsgd.explain(Shifted(), torch.rand(1, 3)))
    assert "pinned" in report and "`add`" in report and "first.weight" in report

"""What a step does not ask for is not measured: kappa of parameters that no rescaling changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd import Metric
from pathsgd.kernels.whiten import dense
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings


class Tied(nn.Module):
    """An encoder, a part of its own in the middle, and the encoder turned round."""

    def __init__(self, middle: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(7, 5), nn.Linear(5, 3)
        self.middle = (
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)) if middle else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(torch.relu(self.two(torch.relu(self.one(x)))))
        return torch.mm(torch.relu(h @ self.two.weight), self.one.weight)


class Twice(nn.Module):
    """One matrix turned round, another in a product with more than one row: those are squared."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.many = nn.Linear(6, 6), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.one(torch.relu(self.one(x)))).view(-1, 2, 3)
        return torch.relu(self.many(h)).flatten(1) @ self.one.weight.t()


MODELS = {"tied": lambda: Tied(False), "with a middle": lambda: Tied(True), "twice": Twice}
WIDTH = {"tied": 7, "with a middle": 7, "twice": 6}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", MODELS)
def test_the_metric_is_that_of_a_full_measurement(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = MODELS[kind]().to(dtype), torch.rand(4, WIDTH[kind], dtype=dtype)
    geometry, parameters = Geometry(model), dict(model.named_parameters())
    short, full = (geometry.measure((x,), exact=not s, free_only=s) for s in (True, False))
    assert short.log_gamma_sq == pytest.approx(full.log_gamma_sq, rel=1e-12)
    assert set(short.kappa) == set(full.kappa)
    wanted = whitenings(full, parameters, Metric())
    for name, root in whitenings(short, parameters, Metric()).items():
        torch.testing.assert_close(dense(root), dense(wanted[name]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("by_chain", [True, False])
def test_tied_matrices_are_never_squared(by_chain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathsgd.network import squared
    from pathsgd.paths import chain

    if not by_chain:  # the general route, as for nets that are no chain
        monkeypatch.setattr(chain, "log_gamma_sq", lambda *_: None)
    seen: list[torch.Size] = []
    of = squared.power_of
    monkeypatch.setattr(
        squared, "power_of", lambda p, order: (seen.append(p.shape), of(p, order))[1]
    )
    model, x = Tied(False), torch.rand(4, 7)
    optimizer = pathsgd.PathAdam(model, lr=1e-3)
    model(x).square().mean().backward()
    optimizer.step()
    seen.clear()
    optimizer.step()
    assert bool(seen) != by_chain and all(len(shape) == 1 for shape in seen)

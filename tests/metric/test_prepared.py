"""A prepared whitening is reused while only numbers change: bitwise equal to a new one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from pathsgd.kernels.native import load
from pathsgd.kernels.whiten import Lines, Outer, WhitenRequest, dense, whiten_and_keep
from pathsgd.metric.choice import PAPER, Metric
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings


class Last(nn.Module):
    """A recurrent layer and what reads its last step."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.rnn = nn.RNN(3, 5, nonlinearity="relu", **options)  # type: ignore[arg-type]
        self.out = nn.Linear(self.rnn.hidden_size * (1 + self.rnn.bidirectional), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][-1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2))


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "plain": (Last, torch.rand(9, 4, 3)),
    "deep": (lambda: Last(num_layers=2), torch.rand(9, 4, 3)),
    "mlp": (mlp, torch.rand(4, 3)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)),
        torch.rand(2, 1, 8, 8),
    ),
}


@pytest.mark.skipif(load().library is None, reason="torch prepares nothing")
@pytest.mark.parametrize(
    "metric", [Metric(), Metric(0.3), PAPER], ids=["relative", "between", "paper"]
)
@pytest.mark.parametrize("kind", MODELS)
@given(seed=st.integers(0, 2**20))
def test_it_serves_again(kind: str, metric: Metric, seed: int) -> None:
    torch.manual_seed(seed)
    make, x = MODELS[kind]
    model, last = make(), None
    parameters, geometry = dict(model.named_parameters()), Geometry(model)
    for _ in range(3):
        model.zero_grad()
        model(x).square().mean().backward()
        measured = geometry.measure((x,), exact=False)
        new = whitenings(measured, parameters, metric)
        made = whitenings(measured, parameters, metric, last=last)
        assert set(made) == set(new)
        for name in parameters:
            assert torch.equal(dense(made[name]), dense(new[name]))
        if last is not None:
            assert made.prepared is last.prepared is not None
        last = made
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(torch.rand_like(p) + 0.5)


@pytest.mark.skipif(load().library is None, reason="torch prepares nothing")
def test_another_net_is_not_served() -> None:
    model, x = mlp(), torch.rand(4, 3)
    parameters = dict(model.named_parameters())
    measured = Geometry(model).measure((x,), exact=False)
    last = whitenings(measured, parameters, Metric())
    other = Geometry(model).measure((x,), exact=False)  # equal, and not the same spaces
    assert whitenings(other, parameters, Metric(), last=last).prepared is not last.prepared
    assert (
        whitenings(measured, parameters, Metric(), last=last, dtype=torch.float64).prepared
        is not last.prepared
    )


@pytest.mark.skipif(load().library is None, reason="torch prepares nothing")
def test_the_border_looks_at_every_kappa_again() -> None:
    lines = Lines(3, 4)
    kappa = torch.rand(3, 4, dtype=torch.float64) + 1
    _, call, _ = whiten_and_keep([WhitenRequest(kappa, lines)], None, 1.0, torch.float32)
    assert call is not None
    sides = torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    assert call.serves([kappa + 1], None)
    assert not call.serves([kappa.float()], None)
    assert not call.serves([kappa[:2]], None)
    assert not call.serves([kappa.t().contiguous().t()], None)
    assert not call.serves([Outer(kappa[:, :1].contiguous(), kappa[:1])], None)
    assert not call.serves([kappa.to("meta")], None)
    assert not call.serves([kappa], sides)
    call.run(None, 1.0)
    with pytest.raises(RuntimeError, match="have been used"):
        call.run(None, 1.0)
    call.results[0].untyped_storage().resize_(0)  # type: ignore[union-attr]
    assert not call.serves([kappa], None)


def test_an_optimiser_works_on_the_same_tensors_at_every_step() -> None:
    for make, x in MODELS.values():
        model = make()
        optimizer = pathsgd.PathAdam(model, lr=1e-3)
        kept: dict[str, Tensor] = {}
        for k in range(4):  # the first step finds the sizes of the absolute metric
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            now = {n: optimizer.state[p].whitening for n, p in model.named_parameters()}
            assert k < 2 or load().library is None or all(now[n] is kept[n] for n in now)
            kept = now

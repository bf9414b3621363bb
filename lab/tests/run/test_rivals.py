"""Rivals learn, continue bit for bit from a checkpoint, and name what they do not support."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from studies.compare.capped import path_length
from studies.compare.contest import AS_DEFAULT
from studies.compare.g_sgd import GSGD
from torch import nn

from pathsgd.paths.rescaling import random_rescaling
from pathsgd_lab.errors import UsageError
from pathsgd_lab.run.optimisers.in_path import INNER
from pathsgd_lab.run.trainer import Trainer
from pathsgd_lab.studies.study import run

NAMES = (
    "momentum", "adamw", "nadam", "muon", "soap", "lion", "schedule-free", "prodigy", "g-sgd",
    "path-adam-capped", "in-path",
)  # fmt: skip
RATES = {"lion": 1e-3, "prodigy": 1.0, "g-sgd": 0.1, "momentum": 0.1}


def trainer(name: str, system: str = "rnn_path") -> Trainer:
    """A small run of the adding problem."""
    start = {"others_range": 0.3} if system == "rnn_path" else {}
    start |= AS_DEFAULT if name == "in-path" else {}
    spec = run(
        "adding", system, name, length=5, hidden=6, valid_size=10, test_size=10,
        lr=RATES.get(name, 3e-3), **start
    )  # fmt: skip
    return Trainer(spec, spec.task.prepare())


def system_for(name: str) -> str:
    """A recurrent net, or the dense one where nothing else will do."""
    return "mlp" if name == "g-sgd" else "rnn_path"


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_falls(name: str) -> None:
    run_ = trainer(name, system_for(name))
    batch = run_.stream.next()
    losses = [run_.stepper.step(batch, None)[0].item() for _ in range(150)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_bit_for_bit(name: str) -> None:
    first, second = (trainer(name, system_for(name)) for _ in range(2))
    for _ in range(12):
        first.stepper.step(first.stream.next(), None)
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    for _ in range(12):
        a, b = (r.stepper.step(r.stream.next(), None)[0] for r in (first, second))
        assert torch.equal(a, b)
    first.stepper.scale_rate(0.5)
    assert all(
        group["lr"] == pytest.approx(0.5 * RATES.get(name, 3e-3))
        for group in first.stepper.optimiser.param_groups
    )


@pytest.mark.parametrize("inner", list(INNER))
def test_in_path_coordinates_nobody_feels_a_rescaling(inner: str) -> None:
    """Units rescaled by powers of two: what the optimiser sees is the same in every bit."""
    spec = run(
        "adding", "rnn_path", "in-path", length=5, hidden=6, valid_size=10, test_size=10,
        others_range=0.3, inner=inner,
        **AS_DEFAULT,
    )  # fmt: skip
    one, twin = (Trainer(spec, spec.task.prepare()) for _ in range(2))
    random_rescaling(
        twin.model, spec.task.example_inputs(), low=1e-3, high=1e3, powers_of_two=True, output=0
    )
    for _ in range(30):
        a, b = (r.stepper.step(r.stream.next(), None)[0] for r in (one, twin))
        assert torch.equal(a, b)


def test_the_average_is_judged_and_the_moving_point_moves_on() -> None:
    run_ = trainer("schedule-free")
    for _ in range(5):
        run_.stepper.step(run_.stream.next(), None)
    moving = [p.detach().clone() for p in run_.model.parameters()]
    with run_.stepper.judged():
        assert any(not torch.equal(p, q) for p, q in zip(run_.model.parameters(), moving))
    for p, q in zip(run_.model.parameters(), moving):
        torch.testing.assert_close(p.detach(), q)
    assert run_.evaluate().metrics["valid"] > 0


def test_muon_moves_hidden_matrices_and_adamw_the_rest() -> None:
    optimiser = trainer("muon").stepper.optimiser
    sizes = {type(member).__name__: [tuple(p.shape)
                                    for g in member.param_groups for p in g["params"]]
             for member in optimiser.members}  # type: ignore[attr-defined]  # fmt: skip
    assert sizes["Muon"] == [(6, 2), (6, 6)] and (1, 6) in sizes["AdamW"] and (6,) in sizes["AdamW"]
    with pytest.raises(ValueError, match="several optimisers as one take no closure"):
        optimiser.step(lambda: 0.0)


def dense(width: int = 4) -> nn.Sequential:
    """Three inputs, two hidden layers, two outputs, in double precision."""
    layers = nn.Sequential(
        nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    ).double()
    return layers


def g_sgd(model: nn.Sequential, clip: float = 0.0) -> GSGD:
    """G-SGD on all linear layers."""
    return GSGD([m for m in model if isinstance(m, nn.Linear)], lr=1e-3, clip=clip)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_g_sgd_does_not_see_the_scale_of_units(clip: float) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model, x, y = dense(), torch.randn(20, 3), torch.randn(20, 2)
        twin = copy.deepcopy(model)
        random_rescaling(
            twin, x[:1], low=0.1, high=10.0, generator=torch.Generator().manual_seed(1)
        )
        assert not torch.allclose(model[0].weight, twin[0].weight)
        optimisers = g_sgd(model, clip), g_sgd(twin, clip)
        for _ in range(20):
            for net, optimiser in zip((model, twin), optimisers):
                net.zero_grad()
                (net(x) - y).square().mean().backward()
                optimiser.step()
        torch.testing.assert_close(model(x), twin(x), rtol=1e-8, atol=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


def test_g_sgd_steps_down_the_gradient_by_path_values() -> None:
    """Oracle: the values of the basis paths as parameters of a net under autograd."""
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model, x, y = dense(3), torch.randn(20, 3), torch.randn(20, 2)
        first, second, third = (m for m in model if isinstance(m, nn.Linear))
        a, b, c = (m.weight.detach().clone() for m in (first, second, third))
        unit = torch.arange(3)
        out = unit % 2
        s1, s2 = (
            b[unit, unit] * c[out, unit],
            c[out, unit],
        )  # products of skeleton weights behind the units
        # Values: first layer times what follows; later layers with the path that leads to their
        # unit.
        p1 = (a * s1.unsqueeze(1)).requires_grad_()
        q = torch.diagonal(p1)
        p2 = (b * s2.unsqueeze(1) * (q / s1)).detach().requires_grad_()
        p3 = (c * (q / s2)).detach().requires_grad_()
        biases = [m.bias.detach().clone() for m in (first, second, third)]
        w1 = p1 / s1.unsqueeze(1)
        off2, off3 = 1 - torch.eye(3), torch.ones(2, 3).index_put((out, unit), torch.zeros(3))
        w2 = torch.where(off2 > 0, p2 * s1 / (q * s2.unsqueeze(1)), b)
        w3 = torch.where(off3 > 0, p3 * s2 / q, c)
        hidden = torch.relu(torch.relu(x @ w1.t() + biases[0]) @ w2.t() + biases[1])
        loss = (hidden @ w3.t() + biases[2] - y).square().mean()
        g1, g2, g3 = torch.autograd.grad(loss, (p1, p2, p3))
        with torch.no_grad():
            n1, n2, n3 = p1 - 1e-3 * g1, p2 - 1e-3 * g2, p3 - 1e-3 * g3
            m = torch.diagonal(n1)
            expected1 = n1 / s1.unsqueeze(1)
            expected2 = torch.where(off2 > 0, n2 * s1 / (m * s2.unsqueeze(1)), b)
            expected3 = torch.where(off3 > 0, n3 * s2 / m, c)
        optimiser = g_sgd(model)
        (model(x) - y).square().mean().backward()
        optimiser.step()
        for layer, expected in ((first, expected1), (second, expected2), (third, expected3)):
            torch.testing.assert_close(layer.weight.detach(), expected, rtol=1e-9, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_an_optimiser_is_not_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="g-sgd is defined for mlp only"):
        run("adding", "rnn_path", "g-sgd")
    with pytest.raises(ValueError, match="one width"):
        g_sgd(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
        )
    with pytest.raises(ValueError, match="leave growth_limit at 0"):
        run("adding", "rnn_path", "muon", growth_limit=3.0)
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(UsageError, match=r"install pathsgd\[rivals\]"):
        trainer("lion")


def test_the_mean_length_of_paths() -> None:
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False),
    nn.ReLU(),
                         nn.Linear(4, 1, bias=False)).double()  # fmt: skip
    x = torch.ones(1, 3, dtype=torch.float64)
    assert path_length(Outputs(deep), x) == pytest.approx(3.0)
    random_rescaling(deep, x, low=0.01, high=100.0, generator=torch.Generator().manual_seed(1))
    assert path_length(Outputs(deep), x) == pytest.approx(3.0)


class Outputs(nn.Module):
    """A net that returns its output and no state, as the lab's nets do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[()]]:
        return self.net(x), ()


def test_the_rate_falls_as_gamma_rises_and_never_rises_above_the_given_one() -> None:
    run_ = trainer("path-adam-capped", "mlp")
    group = run_.stepper.optimiser.param_groups[0]
    for _ in range(6):
        run_.stepper.step(run_.stream.next(), None)
    assert 0.0 < group["cap"] <= 1.0 and group["lr"] == 3e-3
    with torch.no_grad():
        for p in run_.model.parameters():
            p.mul_(2.0)
    for _ in range(5):
        run_.stepper.step(run_.stream.next(), None)
    assert group["cap"] == pytest.approx(
        0.5, rel=0.15
    )  # weights twice as large: steps as long as before

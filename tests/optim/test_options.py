"""Every option, passed alone, changes the run or is refused; and there are few options."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pathsgd import Metric, PathAdam, PathSGD


class Net(nn.Module):
    """A recurrent net that returns two results, so that every option has something to act on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rnn = nn.RNN(2, 6, nonlinearity="relu")
        self.out, self.aside = nn.Linear(6, 1), nn.Linear(6, 2)
        with torch.no_grad():
            self.rnn.weight_hh_l0.add_(
                1.2 * torch.eye(6)
            )  # states grow, so that a bound on growth has work to do

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = self.rnn(x)[0][-1]
        return self.out(last), self.aside(last)


X = torch.randn(7, 5, 2, generator=torch.Generator().manual_seed(0))


def trained(optimiser: type, **options: Any) -> Tensor:
    net = Net()
    chosen = options.pop("params", None)
    optimizer = optimiser(net, params=None if chosen is None else chosen(net), **options)
    for _ in range(6):
        optimizer.zero_grad()
        first, second = net(X)
        (30 * ((first - 1).square().mean() + second.square().mean())).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()).detach()


BOTH: dict[str, list[dict[str, Any]]] = {
    "lr": [{"lr": 0.005}],
    "weight_decay": [{"weight_decay": 0.5}],
    "metric": [
        {"metric": m} for m in ("paper", "relative", Metric(0.5), Metric(0.5, absolute=True))
    ],
    "terms": [{"terms": "both"}],
    "clip": [{"clip": 0.01}, {"clip": None}],
    "growth": [{"growth": 1e-3}],
    "refresh_every": [{"refresh_every": 4}],
    "maximize": [{"maximize": True}],
    "params": [{"params": lambda net: net.out.parameters()}],
    "example_inputs": [{"example_inputs": X[:3]}],
    "output": [{"output": 1}],
}
OPTIONS: dict[type, dict[str, list[dict[str, Any]]]] = {
    PathAdam: {**BOTH, "betas": [{"betas": (0.5, 0.9)}], "eps": [{"eps": 0.1}]},
    PathSGD: {
        **BOTH,
        "momentum": [{"momentum": 0.9}],
        "nesterov": [{"momentum": 0.9, "nesterov": True}],
        "scale": [{"metric": "paper", "scale": "sgd", "lr": 1e-3}],
    },
}
ROWS = [
    (o, name, options)
    for o, table in OPTIONS.items()
    for name, rows in table.items()
    for options in rows
]


@pytest.mark.parametrize(
    ("optimiser", "name", "options"), ROWS, ids=[f"{o.__name__}-{name}" for o, name, _ in ROWS]
)
@pytest.mark.filterwarnings("ignore:parameter '(out|aside)")
def test_every_option_makes_a_difference(
    optimiser: type, name: str, options: dict[str, Any]
) -> None:
    assert not torch.equal(
        trained(optimiser, **options), trained(optimiser, **_without(name, options))
    )


def _without(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}


@pytest.mark.parametrize("optimiser", OPTIONS)
def test_every_option_is_in_the_table(optimiser: type) -> None:
    assert set(inspect.signature(optimiser).parameters) - {"model", "capturable"} == set(
        OPTIONS[optimiser]
    )


@pytest.mark.parametrize("optimiser", OPTIONS)
def test_capturable_is_refused_here(optimiser: type) -> None:
    """On a device it has an effect: tests/devices/test_capturable.py."""
    with pytest.raises(ValueError, match="capturable=True"):
        trained(optimiser, capturable=True)


def test_path_adam_has_few_options() -> None:
    assert len(inspect.signature(PathAdam).parameters) - 1 <= 14


WITHOUT_EFFECT = [
    (PathSGD, {"nesterov": True}, "nesterov"),
    (PathSGD, {"clip": math.inf}, "clip"),
    (PathSGD, {"scale": "sgd"}, "paper's metric"),
    (PathAdam, {"growth": math.inf}, "growth"),
]


@pytest.mark.parametrize(("optimiser", "options", "named"), WITHOUT_EFFECT, ids=str)
def test_an_option_without_effect_is_refused(
    optimiser: type, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        optimiser(Net(), **options)

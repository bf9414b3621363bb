"""Biases beside their units' weights, where path sums overestimate what those units receive."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd import Metric
from pathsgd.metric.biases import held_back
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings


def deep(layers: int, width: int = 16) -> nn.Sequential:
    """He initialisation: the squared network doubles at every layer; ReLUs undo that in the net."""
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(8, width), nn.ReLU()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(width, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return x, x[:, :1].relu() - x[:, 1:2].abs()


def with_gradients(model: nn.Module, x: Tensor, y: Tensor):
    model.zero_grad()
    (model(x) - y).square().mean().backward()
    geometry = Geometry(model)
    return geometry.measure((x,)), geometry.parameters()


def test_the_biases_of_a_deep_net_stay_beside_its_weights() -> None:
    ours = deep(24)
    theirs, (x, y), losses = copy.deepcopy(ours), data(), []
    for model, optimizer in (
        (ours, pathsgd.PathAdam(ours, lr=1e-3)),
        (theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3)),
    ):
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    largest = [max(float(p.detach().abs().max()) for p in m.parameters()) for m in (ours, theirs)]
    assert largest[0] < 2 * largest[1]
    assert losses[59] < 0.9 * losses[0] and max(losses[:60]) < 2 * losses[0]


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_usual_nets_are_left_alone(layers: int) -> None:
    model, (x, y) = deep(layers, 64), data()
    found, parameters = with_gradients(model, x, y)
    roots = whitenings(found, parameters, Metric())
    gradients = {name: p.grad for name, p in parameters.items()}
    model.zero_grad()
    for name, root in whitenings(found, parameters, Metric()).items():
        torch.testing.assert_close(roots[name], root, rtol=0, atol=0)
    assert all(g is not None for g in gradients.values())


def test_the_bound_is_covariant() -> None:
    model, (x, y) = deep(20).double(), data()
    twin = copy.deepcopy(model)
    pathsgd.random_rescaling(
        twin, x.double(), low=0.01, high=100, generator=torch.Generator().manual_seed(2)
    )
    roots = []
    for net in (model, twin):
        found, parameters = with_gradients(net, x.double(), y.double())
        whole = whitenings(found, parameters, Metric())
        u = {name: parameters[name].grad * root for name, root in whole.items()}
        roots.append(u)
        bounded = {name for name, _ in held_back(whole, found, parameters)}
        assert len(bounded) == 21
    for name, u in roots[0].items():
        torch.testing.assert_close(roots[1][name], u, rtol=1e-7, atol=1e-12)


def test_a_bias_is_held_back_to_the_weights_of_its_layer() -> None:
    model, (x, y) = deep(20), data()
    found, parameters = with_gradients(model, x, y)
    roots = whitenings(found, parameters, Metric())
    lengths = {name: float((parameters[name].grad * root).norm()) for name, root in roots.items()}
    assert all(
        lengths[bias] <= 1.0001 * lengths[weight] for bias, weight in found.spaces.biases.items()
    )  # of 16 units all are looked at


def test_a_bias_beside_weights_that_get_nothing_learns() -> None:
    model, (_, y) = deep(1), data()
    optimizer = pathsgd.PathAdam(model, lr=1e-2)
    with torch.no_grad():
        model[0].bias.fill_(0.1)
    before = model[0].bias.detach().clone()
    (model(torch.zeros(64, 8)) - y).square().mean().backward()
    optimizer.step()
    assert bool((model[0].bias != before).any())

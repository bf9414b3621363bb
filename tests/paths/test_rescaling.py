"""Free nodes, given and random rescalings, balance."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathsgd
from support import models
from support.models import Apply, Weights

DOUBLE = torch.float64


def count(model: nn.Module, *shape: int) -> int:
    return pathsgd.node_spaces(model, torch.rand(*shape)).count


def test_free_nodes_of_the_usual_nets() -> None:
    assert count(models.mlp([2, 5, 4, 3]), 1, 2) == 9
    assert count(models.ReadRNN(2, 4, 1, num_layers=3, bidirectional=True), 5, 1, 2) == 24
    assert count(models.HandLoop(2, 4, 1), 5, 1, 2) == 4
    assert count(models.CellLoop(2, 4, 1), 1, 5, 2) == 4
    assert count(models.StartedLoop(2, 4), 5, 1, 2) == 4
    assert count(models.Residual(2, 4, 3, 1, 2), 1, 2) == 4 + 2 * 3
    conv = nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 2, 2)
    )
    assert count(conv, 1, 3, 8, 8) == 6


def test_a_residual_net_of_convolutions_with_batch_norm() -> None:
    """The stem and both blocks' sums share a space of four; each norm's outputs are another."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = (
                nn.Conv2d(4, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.Conv2d(4, 4, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))

    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    spaces = pathsgd.node_spaces(net, torch.rand(2, 1, 6, 6))
    assert spaces.count == 4 + 2 * 4
    assert (
        bool((spaces.edges["1.first.weight"].target == 0).all())
        and spaces.edges["1.norm.weight"].free
    )


def test_fixed_maps_between_units() -> None:
    """A fixed matrix over positions keeps channels apart; one over channels ties them."""
    adjacency = torch.rand(3, 3)
    graph = nn.Sequential(
        nn.Linear(2, 4), nn.ReLU(), Apply(lambda h: adjacency @ h), nn.Linear(4, 1)
    )
    assert count(graph, 1, 3, 2) == 4
    mixing = torch.rand(4, 4)
    mixed = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), Apply(lambda h: h @ mixing), nn.Linear(4, 1))
    assert count(mixed, 1, 2) == 1


def test_weights_computed_from_weights() -> None:
    """A product of two matrices has units between them and one overall scale; so has a sum."""
    factored = Weights(
        lambda m, x: F.linear(x, m.a @ m.b).relu() @ m.c, a=(4, 2), b=(2, 3), c=(4, 1)
    ).double()
    summed = Weights(
        lambda m, x: F.linear(x, m.a + m.b).relu() @ m.c, a=(4, 3), b=(4, 3), c=(4, 1)
    ).double()
    x = torch.rand(2, 3, dtype=DOUBLE)
    for model, free in ((factored, 2 + 1), (summed, 1)):
        output = model(x)
        assert pathsgd.node_spaces(model, x).count == free
        torch.testing.assert_close(pathsgd.random_rescaling(model, x)(x), output)


def test_names_tell_where_a_node_lives() -> None:
    assert pathsgd.node_spaces(models.mlp([2, 2, 1]), torch.rand(1, 2)).names == [
        "0.weight[0]",
        "0.weight[1]",
    ]


def test_a_given_rescaling() -> None:
    net, x = models.mlp([2, 2, 1]).double(), torch.rand(3, 2, dtype=DOUBLE)
    before, output = copy.deepcopy(net), net(x)
    assert pathsgd.rescale_nodes(net, x, alpha=[2.0, 0.5]) is net
    factors = torch.tensor([2.0, 0.5], dtype=DOUBLE)
    torch.testing.assert_close(net[0].weight, before[0].weight * factors[:, None])
    torch.testing.assert_close(net[0].bias, before[0].bias * factors)
    torch.testing.assert_close(net[2].weight, before[2].weight / factors)
    torch.testing.assert_close(net[2].bias, before[2].bias)
    torch.testing.assert_close(net(x), output)


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        ([1.0], "2 numbers"),
        ([[1.0, 1.0]], "2 num"),
        ([1.0, 0.0], "positive"),
        (-1.0, "positive"),
        (1e400, "finite"),
    ],
)
def test_an_impossible_rescaling_changes_nothing(alpha: object, text: str) -> None:
    net = models.mlp([2, 2, 1])
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=text):
        pathsgd.rescale_nodes(net, torch.rand(1, 2), alpha=alpha)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_random_rescaling_stays_between_its_bounds_and_follows_its_generator() -> None:
    nets = [models.mlp([2, 50, 1], bias=False) for _ in range(3)]
    for net, seed in zip(nets, (1, 1, 2)):
        nn.init.ones_(net[0].weight), nn.init.ones_(net[2].weight)
        generator = torch.Generator().manual_seed(seed)
        pathsgd.random_rescaling(net, torch.rand(1, 2), low=0.1, high=10.0, generator=generator)
    alpha = nets[0][0].weight[:, 0].detach()
    assert 0.1 <= float(alpha.min()) < 0.2 and 5 < float(alpha.max()) <= 10
    assert torch.equal(nets[0][0].weight, nets[1][0].weight)
    assert not torch.equal(nets[0][0].weight, nets[2][0].weight)
    for low, high in ((0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(ValueError, match="low"):
            pathsgd.random_rescaling(nets[0], torch.rand(1, 2), low=low, high=high)


def size(model: nn.Module) -> float:
    return sum(float(p.detach().square().sum()) for p in model.parameters())


@pytest.mark.parametrize(
    "name", ["mlp", "deep rnn", "residual", "hand-written loop", "bidirectional rnn"]
)
def test_balance_undoes_any_rescaling_and_is_the_least_sum_of_squares(name: str) -> None:
    from support.cases import CASES

    case = CASES[name]
    model, x = case.build(name), case.examples()
    twin = pathsgd.random_rescaling(
        copy.deepcopy(model), *x, generator=torch.Generator().manual_seed(0)
    )
    output = model(*x)
    for net in (model, twin):
        pathsgd.balance(net, *x)
        torch.testing.assert_close(net(*x), output, rtol=1e-8, atol=1e-10)
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-9)
    least = size(model)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        other = pathsgd.random_rescaling(
            copy.deepcopy(model), *x, low=0.7, high=1.4, generator=generator
        )
        assert size(other) > least


def test_balance_equalises_what_enters_and_what_leaves_each_unit() -> None:
    net, x = models.mlp([2, 4, 4, 1]), torch.rand(1, 2)
    pathsgd.balance(net, x)
    for before, after in ((net[0], net[2]), (net[2], net[4])):
        entering = before.weight.square().sum(1) + before.bias.square()
        torch.testing.assert_close(entering, after.weight.square().sum(0), rtol=1e-4, atol=0)


def test_balance_leaves_dead_units_alone_and_warns_when_it_stops_early() -> None:
    net, x = models.mlp([2, 3, 1]).double(), torch.rand(1, 2, dtype=DOUBLE)
    with torch.no_grad():
        net[2].weight[0, 1] = 0
    row = net[0].weight[1].clone()
    pathsgd.balance(net, x)
    torch.testing.assert_close(net[0].weight[1], row)
    pathsgd.random_rescaling(net, x)
    with pytest.warns(UserWarning, match="stopped after 2 iterations"):
        pathsgd.balance(net, x, max_iterations=2)


def test_a_weight_in_another_order_is_not_taken_for_the_whole() -> None:
    """First and last rows stay, the middle ones swap: every entry must follow its own unit."""
    model = Weights(
        lambda m, x: (m.a[[0, 2, 1, 3]] @ x.T).relu().T @ m.b, a=(4, 2), b=(4, 1)
    ).double()
    x = torch.rand(3, 2, dtype=DOUBLE)
    output = model(x)
    pathsgd.random_rescaling(model, x)
    torch.testing.assert_close(model(x), output)


def test_padding_with_minus_infinity_is_that_of_a_max_pool():
    class Pooled(nn.Module):
        def __init__(self, by_hand):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.out, self.by_hand = nn.Conv2d(2, 3, 3), nn.Linear(12, 1), by_hand

        def forward(self, x):
            h = torch.relu(self.conv(x))
            if self.by_hand:
                h = F.max_pool2d(F.pad(h, (1, 1, 1, 1), value=-math.inf), 3, 2)
            else:
                h = F.max_pool2d(h, 3, 2, padding=1)
            return self.out(h.flatten(1))

    x = torch.rand(2, 2, 6, 6)
    by_hand, pooled = Pooled(True), Pooled(False)
    assert pathsgd.gamma_sq(by_hand, x).item() == pathsgd.gamma_sq(pooled, x).item()
    assert pathsgd.check_invariance(by_hand, x, optimizer=pathsgd.PathAdam, steps=3).ok

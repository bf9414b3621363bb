"""An optimiser whose model is rescaled goes on as if nothing had happened."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import pathsgd
from support import models

PATH = {
    "PathAdam": lambda m: pathsgd.PathAdam(m, lr=3e-2),
    "PathAdam, old metric": lambda m: pathsgd.PathAdam(m, lr=3e-2, refresh_every=7),
    "PathAdam, absolute": lambda m: pathsgd.PathAdam(m, lr=3e-2, metric="absolute"),
    "PathAdam, absolute, old metric": lambda m: pathsgd.PathAdam(
        m, lr=3e-2, metric="absolute", refresh_every=7
    ),
    "PathAdam, both terms": lambda m: pathsgd.PathAdam(m, lr=3e-2, terms="both", refresh_every=3),
    "PathSGD": lambda m: pathsgd.PathSGD(m, lr=1e-1),
    "PathSGD, momentum": lambda m: pathsgd.PathSGD(m, lr=3e-2, momentum=0.9, refresh_every=4),
    "PathSGD, nesterov": lambda m: pathsgd.PathSGD(m, lr=3e-2, momentum=0.9, nesterov=True),
    "PathSGD, paper": lambda m: pathsgd.PathSGD(
        m, lr=1e-3, momentum=0.9, metric="paper", refresh_every=4
    ),
}
NETS = {
    "mlp": (lambda: models.mlp([3, 8, 6, 2]), (5, 3)),
    "rnn": (lambda: models.ReadRNN(3, 6, 2, num_layers=2), (9, 4, 3)),
    "loop": (lambda: models.HandLoop(3, 6, 2), (9, 4, 3)),
}
TORCH = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.0, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.0),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.0),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.0),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.0, eps=1e-300),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.0, momentum=0.9, centered=True, eps=1e-300),
}


def prepared(net: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = NETS[net]
    return make().double(), torch.rand(*shape, dtype=torch.float64)


def step(model: nn.Module, optimizer: Optimizer, x: Tensor, seed: int) -> None:
    target = torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    (model(x) - 3 * target).square().mean().backward()
    optimizer.step()


def rescale(model: nn.Module, x: Tensor, optimizer: Optimizer | None = None) -> None:
    """By as much as a net of any use is ever out of balance."""
    generator = torch.Generator().manual_seed(1)
    pathsgd.random_rescaling(model, x, low=1e-2, high=1e2, generator=generator, optimizer=optimizer)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", PATH)
def test_steps_after_a_rescaling_are_the_rescaled_steps(name: str, net: str) -> None:
    """In the middle of a metric's life, and of the bounds' memory."""
    model, x = prepared(net)
    optimizer = PATH[name](model)
    for seed in range(5):
        step(model, optimizer, x, seed)
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    rescale(twin, x, its_optimizer)
    for seed in range(5, 12):
        step(model, optimizer, x, seed)
        step(twin, its_optimizer, x, seed)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-7, atol=1e-7)
    rescale(model, x)
    for one, other in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_without_the_state_they_are_not() -> None:
    """The test above can fail: an old metric belongs to the old scaling."""
    model, x = prepared("mlp")
    optimizer = PATH["PathAdam, old metric"](model)
    for seed in range(5):
        step(model, optimizer, x, seed)
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    rescale(twin, x)
    for one, its in ((model, optimizer), (twin, its_optimizer)):
        step(one, its, x, 5)
    assert not torch.allclose(twin(x), model(x), rtol=1e-3)


def test_balance_and_given_numbers_carry_the_state_too() -> None:
    model, x = prepared("rnn")
    optimizer = PATH["PathAdam, absolute, old metric"](model)
    step(model, optimizer, x, 0)
    for change in (
        lambda m, o: pathsgd.balance(m, x, optimizer=o),
        lambda m, o: pathsgd.rescale_nodes(m, x, alpha=7.0, optimizer=o),
    ):
        twins = [copy.deepcopy((model, optimizer)) for _ in range(2)]
        change(*twins[1])
        for twin, its_optimizer in twins:
            step(twin, its_optimizer, x, 1)
        torch.testing.assert_close(twins[0][0](x), twins[1][0](x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("wrapped", [False, True])
def test_torch_s_optimisers_hold_what_they_would_have_held(name: str, wrapped: bool) -> None:
    """At lr = 0 the net stays as it is: its moments are those of a net rescaled before step 1."""
    held = []
    for before in (True, False):
        model, x = prepared("mlp")
        optimizer = TORCH[name](model.parameters())
        if wrapped:
            pathsgd.optim.wrap(optimizer, model)
        if before:
            rescale(model, x)
        for seed in range(3):
            step(model, optimizer, x, seed)
        if not before:
            rescale(model, x, optimizer)
        held.append([optimizer.state[p] for p in model.parameters()])
    for one, other in zip(*held):
        assert one.keys() == other.keys() and any(
            isinstance(value, Tensor) and value.dim() for value in one.values()
        )
        for key, value in one.items():
            torch.testing.assert_close(
                other[key],
                value,
                rtol=1e-6,
                atol=1e-200,
                msg=lambda text, key=key: f"{key}: {text}",
            )


def test_the_paper_s_moments_are_those_of_grad_over_kappa() -> None:
    model, x = prepared("mlp")
    optimizer = pathsgd.PathAdam(model, lr=1e-3, metric="paper")
    step(model, optimizer, x, 0)
    weight = model[0].weight
    before, moments = (
        weight.detach().clone(),
        {k: optimizer.state[weight][k].clone() for k in ("exp_avg", "exp_avg_sq")},
    )
    rescale(model, x, optimizer)
    c = weight.detach() / before
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], moments["exp_avg"] * c)
    torch.testing.assert_close(optimizer.state[weight]["exp_avg_sq"], moments["exp_avg_sq"] * c**2)


class Odd(torch.optim.SGD):
    """An optimiser nobody knows."""


def test_what_is_not_known_is_refused_and_nothing_changes() -> None:
    model, x = prepared("mlp")
    adam = torch.optim.Adam(model.parameters())
    step(model, adam, x, 0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the state of Odd scales with the units is not known"):
        pathsgd.balance(model, x, optimizer=Odd(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match=r"must be a torch.optim.Optimizer, not Sequential"):
        pathsgd.balance(model, x, optimizer=model)  # type: ignore[arg-type]
    adam.state[model[0].weight]["secret"] = torch.ones_like(model[0].weight)
    with pytest.raises(
        ValueError, match=r"how 'secret' in the optimiser's state of '0.weight' scales is not known"
    ):
        pathsgd.balance(model, x, optimizer=adam)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

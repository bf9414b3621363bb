"""A parameter or a state replaced between two steps: the same numbers, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "PathAdam": lambda net, x: pathsgd.PathAdam(net, 1e-2, example_inputs=(x,)),
    "PathSGD": lambda net, x: pathsgd.PathSGD(net, 1e-2, momentum=0.9, example_inputs=(x,)),
}


def mlp(units: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, units), nn.ReLU(), nn.Linear(units, 3)), torch.rand(4, 6)


def convolution() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 2)
    )
    return net, torch.rand(2, 3, 8, 8)


def step(net: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(x).square().sum().backward()
    optimizer.step()


def after_steps(
    make: Any, net: nn.Module, x: Tensor, change: Callable[[nn.Module], Any]
) -> list[Tensor]:
    optimizer = make(net, x)
    for i in range(6):
        step(net, x, optimizer)
        if i == 1:
            change(net)
    return [p.detach().clone(memory_format=torch.contiguous_format) for p in net.parameters()]


def transpose_in_memory(net: nn.Module) -> None:
    for p in net.parameters():
        if p.dim() == 2:
            p.data = p.data.t().contiguous().t()


def copy(net: nn.Module) -> None:
    for p in net.parameters():
        p.data = p.data.clone()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    "change", [copy, transpose_in_memory, lambda net: net.to(memory_format=torch.channels_last)]
)
@pytest.mark.parametrize("build", [lambda: mlp(6), convolution], ids=["mlp", "convolution"])
def test_parameters_laid_out_anew_take_the_same_steps(make, change, build) -> None:
    expected = after_steps(make, *build(), change=lambda net: None)
    torch.testing.assert_close(
        after_steps(make, *build(), change=change), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_state_of_another_model_is_refused(make) -> None:
    large, x = mlp(40)
    small, _ = mlp(2)
    theirs, ours = make(small, x), make(large, x)
    step(small, x, theirs)
    step(large, x, ours)
    with pytest.raises(ValueError, match=r"0\.weight.*\(40, 6\).*\(2, 6\)"):
        ours.load_state_dict(theirs.state_dict())
    step(large, x, ours)  # nothing was lost
    large_again, _ = mlp(40)
    once_more = make(large_again, x)
    step(large_again, x, once_more)
    step(large_again, x, once_more)
    torch.testing.assert_close(
        list(large.parameters()), list(large_again.parameters()), rtol=0, atol=0
    )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("units", [2, 90])
def test_a_parameter_replaced_by_one_of_another_size_is_refused(make, units: int) -> None:
    net, x = mlp(40)
    optimizer = make(net, x)
    step(net, x, optimizer)
    other, _ = mlp(units)
    for p, q in zip(net.parameters(), other.parameters()):
        p.data = q.data
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(ValueError, match=rf"0\.weight.*\({units}, 6\).*\(40, 6\)"):
        step(net, x, optimizer)
    torch.testing.assert_close([p.detach() for p in net.parameters()], before, rtol=0, atol=0)


def test_a_net_that_was_pruned_is_measured_as_it_is() -> None:
    net, x = mlp(40)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    pathsgd.optim.wrap(optimizer, net, example_inputs=(x,))
    for units in (40, 3):
        small, _ = mlp(units)
        for p, q in zip(net.parameters(), small.parameters()):
            p.data = q.data
        step(net, x, optimizer)
        expected = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        pathsgd.path_normalize_grad_(net, x)
        torch.testing.assert_close([p.grad for p in net.parameters()], expected)

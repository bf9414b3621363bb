"""Half-precision parameters: metric, moments and step in float32, rounded once at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd

HALVES = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "PathSGD": lambda net: pathsgd.PathSGD(net, 1e-2, momentum=0.9, weight_decay=0.1),
    "PathAdam": lambda net: pathsgd.PathAdam(net, 1e-2, weight_decay=0.1),
    "PathMuon": lambda net: pathsgd.PathMuon(net, 1e-2, weight_decay=0.1),
    "PathAdam of the paper": lambda net: pathsgd.PathAdam(net, 1e-3, metric="paper"),
}


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(4, 9, nonlinearity="relu", batch_first=True), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2)), (8, 4)),
    "rnn": (Rnn, (8, 5, 4)),
}


def backward(net: nn.Module, x: Tensor) -> None:
    net.zero_grad()
    net(x).square().sum().backward()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("kind", NETS)
def test_a_step_is_that_of_float32_rounded_once(
    kind: str, make: Callable[[nn.Module], Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    build, shape = NETS[kind]
    low = build().to(dtype)
    high = copy.deepcopy(low).float()
    x = torch.rand(shape)
    optimizers = make(low), make(high)
    high(x)  # its optimiser learns the shapes
    equal = total = 0
    for _ in range(6):
        backward(low, x.to(dtype))
        for p, q in zip(low.parameters(), high.parameters()):
            q.data, q.grad = p.detach().float(), p.grad.float()  # type: ignore[union-attr]
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(low.parameters(), high.parameters()):
            torch.testing.assert_close(p, q.to(dtype), rtol=HALVES[dtype], atol=1e-7)
            equal, total = equal + int((p == q.to(dtype)).sum()), total + p.numel()
    assert equal > 0.99 * total


def soap(net: nn.Module) -> Any:
    return pathsgd.PathSOAP(net, 1e-2, weight_decay=0.1)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_step_of_soap_is_that_of_float32_rounded_once(dtype: torch.dtype) -> None:
    """To 1/1000 of a step, and for gradients of full rank: bases pass rounding on."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(0.3), nn.Linear(4, 4))
    low = net.to(dtype)
    high = copy.deepcopy(low).float()
    optimizers = soap(low), soap(high)
    for _ in range(25):
        x = torch.randn(64, 4)
        backward(low, x.to(dtype))
        high(x)
        for p, q in zip(low.parameters(), high.parameters()):
            q.data, q.grad = p.detach().float(), p.grad.float()  # type: ignore[union-attr]
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(low.parameters(), high.parameters()):
            torch.testing.assert_close(p, q.to(dtype), rtol=HALVES[dtype], atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [*MAKERS.values(), soap], ids=[*MAKERS, "PathSOAP"])
def test_a_resumed_run_continues_bit_for_bit(
    make: Callable[[nn.Module], Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    net, x = Rnn().to(dtype), torch.rand(8, 5, 4, dtype=dtype)
    optimizer = make(net)
    for _ in range(3):
        backward(net, x)
        optimizer.step()
    again = copy.deepcopy(net)
    resumed = make(again)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, own in ((net, optimizer), (again, resumed)):
        for _ in range(3):
            backward(each, x)
            own.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), again.parameters()))

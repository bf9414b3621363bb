"""A state that went through any format of storage continues the same run, bit for bit."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import pathsgd
from pathsgd.optim import InPathCoordinates

Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMISERS: dict[str, Make] = {
    "PathAdam": lambda m: pathsgd.PathAdam(m, 0.02, refresh_every=3),
    "PathAdam, every step": lambda m: pathsgd.PathAdam(m, 0.02),
    "PathAdam, both terms": lambda m: pathsgd.PathAdam(m, 0.02, terms="both", refresh_every=3),
    "PathAdam, paper": lambda m: pathsgd.PathAdam(m, metric="paper", refresh_every=3),
    "PathAdam, between": lambda m: pathsgd.PathAdam(
        m, 0.02, metric=pathsgd.Metric(0.3), growth=0.5, refresh_every=3
    ),
    "PathSOAP": lambda m: pathsgd.PathSOAP(m, 0.02, refresh_every=3, precondition_frequency=4),
    "PathMuon": lambda m: pathsgd.PathMuon(m, 0.02, refresh_every=3),
    "PathSGD": lambda m: pathsgd.PathSGD(m, 0.05, refresh_every=3, clip=0.1),
    "PathSGD, momentum": lambda m: pathsgd.PathSGD(
        m, 0.05, momentum=0.9, growth=0.5, refresh_every=3
    ),
    "PathSGD, paper": lambda m: pathsgd.PathSGD(
        m, 1e-2, metric="paper", scale="sgd", refresh_every=3
    ),
}


class Reads(nn.Module):
    """A recurrent layer and what is read from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(2, 8, nonlinearity="relu"), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][-1])


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 1)
    )


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rnn": (Reads, (9, 6, 2)),
    "convolution": (images, (4, 2, 5, 5)),
    "linear": (rows, (6, 5)),
}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], steps: range
) -> None:
    for step in steps:
        x = torch.rand(shape, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).sub(x.mean()).square().mean().backward()
        optimizer.step()


def each_tensor(change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """A change of every tensor in a state dict."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list) else value

    return changed


def through_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_safetensors(state: Any) -> Any:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors: dict[str, Tensor] = {}

    def taken(value: Tensor) -> Tensor:
        tensors[str(len(tensors))] = value
        return value

    state = each_tensor(taken)(state)
    names = iter(tensors)
    loaded = safetensors.load(safetensors.save(tensors))
    return each_tensor(lambda _: loaded[next(names)])(state)


FORMATS: dict[str, Callable[[Any], Any]] = {
    "contiguous": each_tensor(lambda t: t.contiguous().clone(memory_format=torch.contiguous_format)),
    "transposed": each_tensor(
        lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
    ),
    "numpy": each_tensor(lambda t: torch.from_numpy(np.array(t.numpy()))),
    "safetensors": through_safetensors,
    "torch.save": through_file,
}  # fmt: skip


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def expect_the_same_run(
    model: str, make: Make, steps: int, move: Callable[[Any, Any, Any, Any], None]
) -> None:
    """move(model, optimizer, new model, new optimizer) hands a run over to new ones."""
    new, shape = MODELS[model]
    torch.manual_seed(1)
    net = new()
    optimizer = make(net)
    train(net, optimizer, shape, range(steps))
    other = copy.deepcopy(net)
    for p in other.parameters():
        p.grad = None
    again = make(other)
    move(net, optimizer, other, again)
    train(net, optimizer, shape, range(steps, steps + 7))
    train(other, again, shape, range(steps, steps + 7))
    for a, b in zip(values(net), values(other)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("steps", [4, 6], ids=["between measurements", "measurement due"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_run_continues(optimiser: str, model: str, form: str, steps: int) -> None:
    def move(_: Any, optimizer: Any, __: Any, again: Any) -> None:
        again.load_state_dict(FORMATS[form](optimizer.state_dict()))

    expect_the_same_run(model, OPTIMISERS[optimiser], steps, move)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("steps", [4, 6], ids=["between measurements", "measurement due"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_run_continues_from_a_distributed_checkpoint(
    optimiser: str, model: str, steps: int, flat: bool, tmp_path: Path
) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def move(net: Any, optimizer: Any, other: Any, again: Any) -> None:
        state = dict(zip(("model", "optimizer"), get_state_dict(net, optimizer, options=options)))
        dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
        state = dict(zip(("model", "optimizer"), get_state_dict(other, again, options=options)))
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
        set_state_dict(
            other,
            again,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )

    expect_the_same_run(model, OPTIMISERS[optimiser], steps, move)


@pytest.mark.parametrize("model", MODELS)
def test_the_state_in_path_coordinates(model: str) -> None:
    def make(m: nn.Module) -> torch.optim.Optimizer:
        inner = torch.optim.Adam(m.parameters(), lr=1e-2)
        return InPathCoordinates(inner, m, refresh_every=3)

    def move(_: Any, optimizer: Any, __: Any, again: Any) -> None:
        again.load_state_dict(FORMATS["contiguous"](through_file(optimizer.state_dict())))

    expect_the_same_run(model, make, 4, move)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_state_dict_holds_plain_numbers_and_contiguous_tensors(
    optimiser: str, model: str
) -> None:
    new, shape = MODELS[model]
    net = new()
    optimizer = OPTIMISERS[optimiser](net)
    train(net, optimizer, shape, range(4))
    for kept, state in zip(optimizer.state.values(), optimizer.state_dict()["state"].values()):
        assert set(kept) == set(state)  # torch.distributed.checkpoint takes names from both
        for key, value in state.items():
            assert isinstance(value, (Tensor, int, float)), key
            assert not isinstance(value, Tensor) or value.is_contiguous(), key

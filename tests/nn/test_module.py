"""pathsgd.nn.RNN as a module: construction, state and copies as of torch.nn.RNN.

Models turned into it and back.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import pathsgd.nn

CONSTRUCTIONS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((3, 4), {}),
    ((3, 4, 2, "relu"), {"bidirectional": True}),
    (
        (3, 4),
        {
            "nonlinearity": "relu",
            "bias": False,
            "num_layers": 3,
            "dropout": 0.2,
            "batch_first": True,
        },
    ),
    ((3, 4), {"nonlinearity": "relu", "dtype": torch.float64, "device": "meta"}),
    ((3,), {}),
    ((3, 4), {"nonlinearity": "gelu"}),
    ((3, 4), {"proj_size": 2}),
    ((0, 4), {}),
    ((3, 4), {"dropout": 2}),
    ((3, 4), {"bias": "yes"}),
]


@pytest.mark.parametrize(("arguments", "options"), CONSTRUCTIONS)
def test_construction(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    def build(kind: type[torch.nn.RNN]) -> Any:
        try:
            module = kind(*arguments, **options)
        except Exception as error:
            return type(error), str(error).replace(kind.__module__, "")
        shapes = [(name, p.shape, p.dtype, p.device) for name, p in module.named_parameters()]
        return repr(module), shapes, list(module.state_dict())

    assert build(pathsgd.nn.RNN) == build(torch.nn.RNN)


def test_the_same_seed_gives_the_same_weights() -> None:
    made = []
    for kind in (torch.nn.RNN, pathsgd.nn.RNN):
        torch.manual_seed(3)
        made.append(kind(3, 4, 2, "relu").state_dict())
    torch.testing.assert_close(*made, rtol=0, atol=0)


def test_state_goes_to_torch_and_back() -> None:
    ours = pathsgd.nn.RNN(3, 4, 2, "relu", bidirectional=True)
    theirs = torch.nn.RNN(3, 4, 2, "relu", bidirectional=True)
    theirs.load_state_dict(ours.state_dict())
    again = pathsgd.nn.RNN(3, 4, 2, "relu", bidirectional=True)
    again.load_state_dict(theirs.state_dict())
    x = torch.rand(5, 2, 3)
    torch.testing.assert_close(theirs(x), ours(x))
    assert torch.equal(again(x)[0], ours(x)[0])


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies(way: str) -> None:
    module = pathsgd.nn.RNN(3, 4, nonlinearity="relu")
    with torch.no_grad():
        for p in module.parameters():
            p.abs_()  # every unit is active: every weight changes the output
    if way == "deepcopy":
        twin = copy.deepcopy(module)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(module))
    else:
        torch.save(module, buffer := io.BytesIO())
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    x = torch.rand(5, 2, 3)
    assert type(twin) is pathsgd.nn.RNN and twin.weight_hh_l0 is not module.weight_hh_l0
    assert torch.equal(twin(x)[0], module(x)[0])
    with torch.no_grad():
        twin.weight_hh_l0.zero_()
    assert not torch.equal(twin(x)[0], module(x)[0])


def test_type_changes_are_followed() -> None:
    module = pathsgd.nn.RNN(3, 4, nonlinearity="relu").double()
    assert module(torch.rand(5, 2, 3, dtype=torch.float64))[0].dtype == torch.float64
    assert module.float()(torch.rand(5, 2, 3))[0].dtype == torch.float32


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.RNN(3, 4, nonlinearity="relu", batch_first=True)
        self.rest = torch.nn.ModuleList(
            [torch.nn.RNN(4, 4, nonlinearity="relu"), torch.nn.RNN(4, 4), torch.nn.LSTM(4, 4)]
        )
        self.same = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.first(x)
        for module in self.rest:
            x, _ = module(x)
        return x


class OwnRNN(torch.nn.RNN):
    """A user's subclass, which may have changed anything."""


def test_fuse_and_back() -> None:
    model, x = Model().eval(), torch.rand(2, 5, 3)
    names, ids = list(model.state_dict()), [id(p) for p in model.parameters()]
    expected = model(x)
    calls: list[str] = []
    model.first.register_forward_hook(lambda *_: calls.append("hook"))

    assert pathsgd.nn.fuse(model) is model
    assert pathsgd.nn.fuse(model) is model  # twice is once
    kinds = [type(module) for module in model.rest]
    assert kinds == [pathsgd.nn.RNN, torch.nn.RNN, torch.nn.LSTM]
    assert type(model.first) is pathsgd.nn.RNN and model.same is model.first
    assert [id(p) for p in model.parameters()] == ids and list(model.state_dict()) == names
    assert not any(module.training for module in model.modules())
    torch.testing.assert_close(model(x), expected)
    assert calls == ["hook"]

    assert pathsgd.nn.unfuse(model) is model
    assert not any(isinstance(module, pathsgd.nn.RNN) for module in model.modules())
    assert [id(p) for p in model.parameters()] == ids
    assert torch.equal(model(x), expected)


def test_fuse_takes_a_bare_rnn_and_leaves_subclasses() -> None:
    assert type(pathsgd.nn.fuse(torch.nn.RNN(2, 3, nonlinearity="relu"))) is pathsgd.nn.RNN
    assert type(pathsgd.nn.fuse(OwnRNN(2, 3, nonlinearity="relu"))) is OwnRNN


def test_an_optimiser_made_before_fusing_goes_on() -> None:
    losses = []
    for fuse in (False, True):
        torch.manual_seed(0)
        model, x = torch.nn.RNN(3, 8, nonlinearity="relu"), torch.rand(6, 4, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        if fuse:
            pathsgd.nn.fuse(model)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x)[1] - 1).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[1] < 0.9


def test_backend_says_what_and_why() -> None:
    backend = pathsgd.nn.backend()
    assert backend.name in ("torch", "generic", "avx2", "avx512") and backend.reason
    assert backend.name in str(backend) and backend.reason in str(backend)

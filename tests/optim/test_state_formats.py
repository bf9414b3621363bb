"""A state that went through any format of storage continues the same run, bit for bit."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pathsgd.optim import InPathCoordinates
from support.continued import MODELS, OPTIMISERS, expect_the_same_run, train


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
    "contiguous": each_tensor(
        lambda t: t.contiguous().clone(memory_format=torch.contiguous_format)
    ),
    "transposed": each_tensor(
        lambda t: (
            t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
        )
    ),
    "numpy": each_tensor(lambda t: torch.from_numpy(np.array(t.numpy()))),
    "safetensors": through_safetensors,
    "torch.save": through_file,
}  # fmt: skip


@pytest.mark.parametrize("steps", [4, 6], ids=["between measurements", "measurement due"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_run_continues(optimiser: str, model: str, form: str, steps: int) -> None:
    def move(_: Any, optimizer: Any, __: Any, again: Any) -> None:
        again.load_state_dict(FORMATS[form](optimizer.state_dict()))

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


def of_version_0_2(state_dict: dict[str, Any]) -> dict[str, Any]:
    """What that version wrote: a whitening, as the metric had it, moments, and packed extras."""
    moments = ("step", "age", "exp_avg", "exp_avg_sq", "momentum_buffer")
    states = {
        index: {key: value for key, value in state.items() if key in moments}
        | {"whitening": state["whitening"][:1].expand(state["whitening"].shape), "more": "UEsDBA=="}
        for index, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


@pytest.mark.parametrize("steps", [0, 3], ids=["new", "in use"])
@pytest.mark.parametrize("optimiser", ["PathAdam", "PathAdam, between", "PathSGD, momentum"])
def test_a_state_of_version_0_2_is_refused_and_nothing_changes(optimiser: str, steps: int) -> None:
    new, shape = MODELS["linear"]
    net = new()
    optimizer = OPTIMISERS[optimiser](net)
    train(net, optimizer, shape, range(4))
    old = of_version_0_2(copy.deepcopy(optimizer.state_dict()))
    again = new()
    resumed = OPTIMISERS[optimiser](again)
    train(again, resumed, shape, range(steps))
    before = copy.deepcopy(resumed.state_dict())
    with pytest.raises(ValueError, match=r"'0\.weight' was written by a version before 0.3; load"):
        resumed.load_state_dict(old)
    after = resumed.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()
    for index, state in before["state"].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][index][key]))

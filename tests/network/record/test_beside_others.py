"""Measuring beside other users of a model: random sources, threads, inference tensors."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pathsgd


class Lucky(nn.Module):
    """Draws from every source of randomness there is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.drawn = random.random(), np.random.rand(), torch.rand(())  # noqa: NPY002
        return torch.relu(self.layer(x))


def test_no_random_state_moves() -> None:
    model, x = Lucky(), torch.rand(2, 3)
    drawn = []
    for measures in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        if measures:
            pathsgd.kappa(model, x)
            pathsgd.explain(model, x)
        drawn.append((random.random(), np.random.rand(), float(torch.rand(()))))  # noqa: NPY002
    assert drawn[0] == drawn[1]


class Keeps(nn.Module):
    """Holds a tensor that was made under inference_mode, and uses or changes it."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.layer, self.changes = nn.Linear(3, 2), changes
        with torch.inference_mode():
            self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            with torch.inference_mode():
                self.scale.add_(1)
        return torch.relu(self.layer(x))


@pytest.mark.parametrize("changes", [False, True])
def test_a_tensor_made_for_inference_is_no_obstacle(changes: bool) -> None:
    torch.manual_seed(0)
    model, x = Keeps(changes), torch.rand(4, 3)
    optimizer = pathsgd.PathAdam(model, 1e-2)
    model(x).sum().backward()
    before = model.scale.clone()
    optimizer.step()
    torch.testing.assert_close(model.scale, before)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(30))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def test_another_thread_may_run_the_model_meanwhile() -> None:
    """No hook is missed and nothing raises: a model's dicts are not emptied during measurement."""
    torch.manual_seed(0)
    model, x = Hooked(), torch.rand(2, 4)
    done, missed, errors = threading.Event(), [], []

    def run() -> None:
        with torch.no_grad():
            while not done.is_set():
                before = len(mine)
                try:
                    model(x)
                except Exception as error:
                    errors.append(error)
                if len(mine) - before != len(model.layers):
                    missed.append(len(mine) - before)

    mine: list[int] = []
    runner = threading.Thread(target=run)
    for layer in model.layers:
        layer.register_forward_hook(
            lambda *_: mine.append(1) if threading.current_thread() is runner else None
        )
    runner.start()
    for _ in range(60):
        pathsgd.gamma_sq(model, x)
    done.set()
    runner.join()
    assert not errors and not missed and mine


class Watched(OrderedDict):  # type: ignore[type-arg]
    """Is nobody's to change."""

    def clear(self) -> None:
        raise AssertionError("emptied")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError(f"{key} was set")

    def copy(self) -> OrderedDict[Any, Any]:  # type: ignore[override]
        return OrderedDict(self)


def test_what_a_forward_pass_leaves_alone_is_not_touched() -> None:
    model = Hooked()
    model.layers[0].register_forward_hook(lambda *_: None)
    for module in model.modules():
        watched = Watched()
        for key, value in module._forward_hooks.items():
            OrderedDict.__setitem__(watched, key, value)
        module._forward_hooks = watched
    pathsgd.gamma_sq(model, torch.rand(1, 4))
    assert len(model.layers[0]._forward_hooks) == 1


def test_lists_sets_and_order_are_put_back() -> None:
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.table, self.kinds, self.steps = {"a": 1, "b": 2}, {1, 2}, [1, 2]

        def forward(self, x: Tensor) -> Tensor:
            del self.table["a"]
            self.table["c"] = self.table["b"] = 5
            self.kinds ^= {2, 3}
            self.steps.insert(0, 7)
            return torch.relu(self.layer(x))

    model = Restless()
    owned = model.table, model.kinds, model.steps
    pathsgd.gamma_sq(model, torch.rand(1, 3))
    assert (list(model.table.items()), model.kinds, model.steps) == (
        [("a", 1), ("b", 2)],
        {1, 2},
        [1, 2],
    )
    assert all(a is b for a, b in zip(owned, (model.table, model.kinds, model.steps)))

"""docs/architecture.md is true: it names every room, and its walks are those that calls take."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from support.walk import ROOT, entries

PROJECT = Path(__file__).parents[1]
PAGE = (PROJECT / "docs" / "architecture.md").read_text()


def rooms() -> list[str]:
    """The rooms in the order of the line, from the contract that import-linter checks."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (line,) = (c for c in contracts if c.get("containers") == ["pathsgd"])
    return [layer for layer in reversed(line["layers"])]


LEVEL = {room: level for level, layer in enumerate(rooms()) for room in layer.split(" | ")}


def room_of(file: str) -> str:
    return Path(file).parts[0].removesuffix(".py")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(2, 4, nonlinearity="relu"), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][-1])


def step_on(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """A step of PathAdam in the middle of training, with the metric due."""
    optimizer = pathsgd.PathAdam(model)
    for again in (True, True, False):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if again:
            optimizer.step()
    return optimizer.step


def kappa_of(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """Not the first call in this process, which looks up names that are then kept."""

    def call() -> Any:
        return pathsgd.kappa(model, x, terms="both")

    call()
    return call


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "`PathAdam.step()` on a plain RNN": lambda: step_on(Net(), torch.ones(5, 3, 2)),
    "`PathAdam.step()` on a convolutional net": lambda: step_on(conv_net(), torch.ones(2, 1, 4, 4)),
    '`kappa(terms="both")` of a plain RNN': lambda: kappa_of(Net(), torch.ones(5, 3, 2)),
}


def written(title: str) -> list[str]:
    """The walk under this title on the page."""
    text = re.search(rf"### {re.escape(title)}\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None, f"docs/architecture.md has no walk {title!r}"
    return text[1].split()


@pytest.mark.parametrize("title", WALKS)
def test_the_walks_on_the_page_are_true(title: str) -> None:
    torch.manual_seed(0)
    taken = list(dict.fromkeys(called for _, called in entries(WALKS[title]())))
    assert written(title) == taken, "\n".join(taken)


@pytest.mark.parametrize("title", WALKS)
def test_no_call_goes_back_up_the_line(title: str) -> None:
    torch.manual_seed(0)
    made = {(calling, called) for calling, called in entries(WALKS[title]()) if calling is not None}
    assert not {pair for pair in made if LEVEL[room_of(pair[1])] > LEVEL[room_of(pair[0])]}


def test_every_room_is_on_the_page() -> None:
    here = {
        path.stem
        for path in ROOT.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    here -= {"__init__"}
    assert here == set(LEVEL)
    assert all(f"| `{room}` |" in PAGE for room in here)

"""One optimiser that several threads step: a concurrent step is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd.optim import InPathCoordinates

OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "PathSGD": lambda m: pathsgd.PathSGD(m, 0.01),
    "PathAdam": lambda m: pathsgd.PathAdam(m, 0.01),
    "InPathCoordinates": lambda m: InPathCoordinates(torch.optim.Adam(m.parameters()), m),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_during_another_is_refused_and_changes_nothing(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = OPTIMISERS[name](model)
    model(torch.ones(2, 3)).sum().backward()
    inside, over = threading.Event(), threading.Event()

    def closure() -> float:
        inside.set()
        over.wait(60)
        return 1.0

    thread = threading.Thread(target=optimizer.step, args=(closure,))
    thread.start()
    assert inside.wait(60)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"{name}.*one thread"):
                optimizer.step()
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))
    finally:
        over.set()
        thread.join()
    assert not all(torch.equal(p, old) for p, old in zip(model.parameters(), before))
    optimizer.step()

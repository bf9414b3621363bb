"""Tests with the real packages: `make harness` runs them in an environment of their own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from pathsgd.optim.base import PathOptimizer
from pathsgd.optim.refresh import Refresh

sys.path.insert(0, str(Path(__file__).parents[1]))
torch.set_num_threads(1)


@pytest.fixture
def counts() -> Iterator[dict[str, int]]:
    """How often path optimisers measured, and how often they stepped."""
    found = {"measured": 0, "steps": 0}
    measure = Refresh.measure

    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        found["measured"] += 1
        return measure(self, *args, **kwargs)

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        found["steps"] += isinstance(optimizer, PathOptimizer)

    handle = register_optimizer_step_post_hook(stepped)
    try:
        with patch.object(Refresh, "measure", measured):
            yield found
    finally:
        handle.remove()

"""The random generators that a forward pass may ask: torch's, Python's and numpy's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Dice:
    """A state of all three."""

    state: tuple[Any, Any, Any]

    @classmethod
    def now(cls) -> Dice:
        """As they are."""
        return cls((torch.get_rng_state(), random.getstate(), np.random.get_state()))  # noqa: NPY002

    @classmethod
    def seeded(cls, seed: int) -> Dice:
        """As they would be after this seed."""
        before = cls.now()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        after = cls.now()
        before._set()
        return after

    def _set(self) -> None:
        torch.set_rng_state(self.state[0])
        random.setstate(self.state[1])
        np.random.set_state(self.state[2])  # noqa: NPY002

    @contextmanager
    def thrown_again(self) -> Iterator[None]:
        """The same throws within the block; afterwards the generators are where they were."""
        before = Dice.now()
        self._set()
        try:
            yield
        finally:
            before._set()

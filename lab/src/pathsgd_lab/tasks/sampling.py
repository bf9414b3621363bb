"""Random order restored from a pair of integers: generators by position, shuffled epochs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def generator_for(*key: int) -> torch.Generator:
    """A generator that depends on ``key`` alone (seed, purpose, position), well mixed."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])
    return torch.Generator().manual_seed(seed)


class ShuffledIndices:
    """Endless batches of indices: a new permutation each epoch, without an incomplete last batch.

    The permutation of an epoch is a function of (seed, epoch), so two integers say where the
    sequence stands.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if not 1 <= batch_size <= count:
            raise ValueError(
                f"batch size {batch_size} does not fit a training set of {count}; choose 1 to "
                f"{count}"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self._go_to(epoch=0, position=0)

    def _go_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = torch.randperm(self.count, generator=generator_for(self.seed, epoch))

    def next(self) -> Tensor:
        """Indices of the next batch, (B,)."""
        if self._position + self.batch_size > self.count:
            self._go_to(self._epoch + 1, 0)
        start = self._position
        self._position += self.batch_size
        return self._order[start : self._position]

    @property
    def epoch(self) -> float:
        """Epochs so far, counting full batches only."""
        batches_per_epoch = self.count // self.batch_size
        return self._epoch + (self._position // self.batch_size) / batches_per_epoch

    def state_dict(self) -> dict[str, int]:
        """Epoch and position in it."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position that ``state_dict`` gave."""
        self._go_to(state["epoch"], state["position"])

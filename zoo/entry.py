"""What an entry of the zoo is: a model, batches for it, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


@dataclass
class Task:
    """One model and how it is trained: loss(model, *batch), over the batches in turn."""

    model: nn.Module
    batches: Sequence[tuple[Any, ...]]
    loss: Callable[..., Tensor]
    inputs: Callable[..., tuple[Any, ...]] = lambda x, *rest: (x,)
    """What the model takes, from a batch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of `explain`, `check_invariance` and the optimiser alike: output."""


STEPS = 100
"""How long a model is trained."""
RATE = 1e-3
"""The learning rate of both optimisers."""


@dataclass(frozen=True)
class Entry:
    field: str
    name: str
    make: Callable[[], Task]
    steps: int = STEPS
    """Fewer where a step takes seconds; the record says how many."""
    rate: float = RATE
    """Lower where Adam, too, explodes at the usual one; the record has it."""


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of the first result; models with helper heads return several."""
    result = model(x)
    return F.cross_entropy(result if isinstance(result, Tensor) else result[0], y)


def images(
    side: int, rows: int = 8, count: int = 2, channels: int = 3
) -> list[tuple[Tensor, Tensor]]:
    """A few batches of random images and labels: a net that trains can memorise them."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(rows, channels, side, side, generator=generator),
            torch.randint(0, CLASSES, (rows,), generator=generator),
        )
        for _ in range(count)
    ]

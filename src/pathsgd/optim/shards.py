"""Parameters of which every process holds a part (fully_shard): what a step needs of the parts of others.

The metric is measured from gathered parameters, in every process alike, and each keeps its own part of it. A step is
made of parts alone. It needs sums over all processes for lengths, one for each step, and whole matrices for the bounds
on growth, which look at recurrent matrices only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pathsgd.optim.parts import Part


def adder(parts: Sequence[Part]) -> Callable[[Tensor], Tensor] | None:
    """`summed` for these parts; None where no process holds other parts of them."""
    return (
        functools.partial(summed, parts) if any(part.spread is not None for part in parts) else None
    )


def summed(parts: Sequence[Part], numbers: Tensor) -> Tensor:
    """One number for each parameter, of its own part: added up over the processes that hold other parts of it."""
    spreads = [part.spread for part in parts for _ in part.params]
    there = numbers.to(parts[0].params[0].device)  # where the processes can add
    for spread in dict.fromkeys(spreads):
        if spread is not None:
            mine = torch.tensor([s == spread for s in spreads], device=there.device)
            there = torch.where(mine, spread.summed(torch.where(mine, there, 0.0)), there)
    return there.to(numbers.device)

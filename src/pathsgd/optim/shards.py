"""Parameters of which every process holds a part (fully_shard): what a step needs of the parts of others.

The metric is measured from gathered parameters, in every process alike, and each keeps its own part of it. A step is
made of parts alone. It needs sums over all processes for lengths, one for each step, and whole matrices for the bounds
on growth, which look at recurrent matrices only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pathsgd.recording.sharded import is_sharded

if TYPE_CHECKING:
    from pathsgd.optim.parts import Part


@dataclass(frozen=True)
class Spread:
    """How a tensor is spread: over which processes (a DeviceMesh), and along which dimension in each of its own."""

    mesh: Any
    placements: tuple[Any, ...]

    def own(self, whole: Tensor) -> Tensor:
        """This process's part of a tensor that every process has; a copy, so that the rest can go."""
        from torch.distributed.tensor import DTensor, Replicate  # loaded by whoever sharded the model

        everywhere = DTensor.from_local(whole, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        part = everywhere.redistribute(placements=self.placements).to_local()
        return part.to(whole.device, copy=True)  # type: ignore[no-any-return]

    def joined(self, own: Tensor, like: Tensor) -> Any:
        """The DTensor of which this is the process's own part. like: a tensor that is spread in the same way."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            own, self.mesh, self.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def summed(self, numbers: Tensor) -> Tensor:
        """Numbers added up over the processes that hold different parts."""
        for dim, placement in enumerate(self.placements):
            if placement.is_shard():
                dist.all_reduce(numbers, group=self.mesh.get_group(dim))
        return numbers


def spread_of(p: Tensor) -> Spread | None:
    """How a parameter is spread; None if this process has all of it."""
    return Spread(p.device_mesh, tuple(p.placements)) if is_sharded(p) else None  # type: ignore[attr-defined]


def own_like(p: Tensor, t: Tensor) -> Tensor:
    """This process's part of a tensor, spread over processes as a parameter is."""
    spread = spread_of(p)
    if spread is None:
        return t
    if not is_sharded(t):
        return spread.own(t)
    return t.redistribute(p.device_mesh, p.placements).to_local()  # type: ignore[operator, attr-defined, no-any-return]


def adder(parts: Sequence[Part]) -> Callable[[Tensor], Tensor] | None:
    """`summed` for these parts; None where no process holds other parts of them."""
    return functools.partial(summed, parts) if any(part.spread is not None for part in parts) else None


def summed(parts: Sequence[Part], numbers: Tensor) -> Tensor:
    """One number for each parameter, of its own part: added up over the processes that hold other parts of it."""
    spreads = [part.spread for part in parts for _ in part.params]
    there = numbers.to(parts[0].params[0].device)  # where the processes can add
    for spread in dict.fromkeys(spreads):
        if spread is not None:
            mine = torch.tensor([s == spread for s in spreads], device=there.device)
            there = torch.where(mine, spread.summed(torch.where(mine, there, 0.0)), there)
    return there.to(numbers.device)

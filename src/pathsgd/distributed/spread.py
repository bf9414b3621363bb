"""Sharded tensors: DTensors, as fully_shard makes them of a model's parameters.

They are stored in parts. `whole` gathers one temporarily; `parted` keeps this process's part of a
whole tensor. All processes make the same calls in the same order, so their collectives match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(t: Any) -> bool:
    """Whether a tensor is sharded (a DTensor). Does not import DTensor, which may be unused."""
    return hasattr(t, "full_tensor") and hasattr(t, "placements")


def own_part(t: Tensor) -> Tensor:
    """What this process holds of a tensor: the same memory."""
    return t.to_local() if is_sharded(t) else t  # type: ignore[attr-defined, no-any-return]


def whole(t: Tensor) -> Tensor:
    """All of a tensor, gathered now; itself if nothing is spread."""
    return t.full_tensor() if is_sharded(t) else t  # type: ignore[attr-defined, no-any-return]


def parted(t: Tensor, like: Tensor) -> Tensor:
    """This process's part of a whole tensor; the tensor itself if `like` is not sharded."""
    spread = spread_of(like)
    return t if spread is None else spread.joined(spread.own(t), like)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Spread:
    """How a tensor is sharded: the processes (a DeviceMesh) and a placement for each mesh axis."""

    mesh: Any
    placements: tuple[Any, ...]

    def own(self, whole: Tensor) -> Tensor:
        """This process's part of a whole tensor; a copy, so that the rest can be freed."""
        # loaded by whoever sharded the model
        from torch.distributed.tensor import DTensor, Replicate

        everywhere = DTensor.from_local(
            whole, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False
        )
        part = everywhere.redistribute(placements=self.placements).to_local()
        return part.to(whole.device, copy=True)  # type: ignore[no-any-return]

    def joined(self, own: Tensor, like: Tensor) -> Any:
        """The DTensor of this process's part. like: a tensor sharded in the same way."""
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


def total(numbers: Tensor, spreads: Sequence[Spread | None], device: torch.device) -> Tensor:
    """One number for each tensor, of this process's part of it, added up over the processes.

    spreads: how each tensor is spread. device: where the processes can add.
    """
    there = numbers.to(device)
    for spread in dict.fromkeys(spreads):
        if spread is not None:
            mine = torch.tensor([s == spread for s in spreads], device=device)
            there = torch.where(mine, spread.summed(torch.where(mine, there, 0.0)), there)
    return there.to(numbers.device)

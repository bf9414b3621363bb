"""Sharded matrices whose rows must come together: one process owns each of them.

gather      every process sends its part of u to the owner
            the owner computes d; nobody else has the matrix, or what is remembered of it
scatter     the owner sends every process its part of d

2 collectives a matrix, as many bytes as the matrix has, each way. All gathers are started before
the first result is asked for, so that owners compute at the same time. What an owner remembers is
sent to the others when it is saved, or when owners change (`share_state`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pathsgd.distributed.spread import Spread


@dataclass(frozen=True)
class Owned:
    """A sharded matrix, whole in one process of those that it is spread over.

    shape: of the whole. owner: its process, counted within `group`.
    """

    shape: torch.Size
    dim: int
    group: Any
    owner: int

    @staticmethod
    def of(spread: Spread, shape: torch.Size, owner: int) -> Owned | None:
        """None unless sharded along one dimension, in plain shards, over one set of processes."""
        dims = [d for d, placement in enumerate(spread.placements) if placement.is_shard()]
        plain = all(type(p).__name__ in ("Shard", "Replicate") for p in spread.placements)
        if len(dims) != 1 or not plain:
            return None
        group = spread.mesh.get_group(dims[0])
        owner %= dist.get_world_size(group)
        return Owned(shape, spread.placements[dims[0]].dim, group, owner)

    @property
    def is_here(self) -> bool:
        """Whether this process is the owner."""
        return dist.get_rank(self.group) == self.owner

    @property
    def _chunk(self) -> int:
        return math.ceil(self.shape[self.dim] / dist.get_world_size(self.group))

    def padded(self, own: Tensor) -> Tensor:
        """A part with the sharded dimension first, padded to equal size, as collectives require."""
        part = own.movedim(self.dim, 0)
        result = part.new_zeros(self._chunk, *part.shape[1:])
        result[: len(part)] = part
        return result

    def gather(self, own: Tensor) -> tuple[Any, list[Tensor]]:
        """Start; the parts arrive at the owner."""
        sent = self.padded(own)
        parts = [torch.empty_like(sent) for _ in range(dist.get_world_size(self.group))]
        parts = parts if self.is_here else []
        to = dist.get_global_rank(self.group, self.owner)
        return dist.gather(sent, parts or None, to, self.group, async_op=True), parts

    def joined(self, parts: list[Tensor]) -> Tensor:
        """The whole of its parts."""
        return torch.cat(parts)[: self.shape[self.dim]].movedim(0, self.dim).contiguous()

    def scatter(self, whole: Tensor | None, like: Tensor) -> tuple[Any, Tensor]:
        """Start; this process's part arrives, padded. like: the part of u."""
        received = torch.empty_like(self.padded(like))
        parts = None
        if whole is not None:
            chunks = whole.movedim(self.dim, 0).split(self._chunk)
            parts = [torch.zeros_like(received) for _ in range(dist.get_world_size(self.group))]
            for part, chunk in zip(parts, chunks):
                part[: len(chunk)] = chunk
        source = dist.get_global_rank(self.group, self.owner)
        return dist.scatter(received, parts, source, self.group, async_op=True), received

    def own(self, received: Tensor, like: Tensor) -> Tensor:
        """This process's part without the padding."""
        return received[: like.shape[self.dim]].movedim(0, self.dim).contiguous()


def owned(spread: Spread, shapes: Sequence[torch.Size]) -> list[Owned] | None:
    """An owner for each matrix of these shapes; None where they are spread in other ways."""
    found = [m for shape in shapes if (m := Owned.of(spread, shape, 0)) is not None]
    if not found:
        return None
    costs = [float(math.prod(shape) * max(shape)) for shape in shapes]
    owners = share_out(costs, dist.get_world_size(found[0].group))
    return [replace(m, owner=owner) for m, owner in zip(found, owners)]


def at_owners(
    own: Sequence[Tensor], matrices: Sequence[Owned], compute: Callable[[int, Tensor], Tensor]
) -> list[Tensor]:
    """compute(index, whole) of every matrix, run by its owner; returns own parts of all results."""
    gathers = [m.gather(u) for m, u in zip(matrices, own)]
    scatters = []
    for index, (m, u, (work, parts)) in enumerate(zip(matrices, own, gathers)):
        work.wait()
        whole = compute(index, m.joined(parts)) if m.is_here else None
        scatters.append(m.scatter(whole, u))
    results = []
    for m, u, (work, received) in zip(matrices, own, scatters):
        work.wait()
        results.append(m.own(received, u))
    return results


def share_out(costs: Sequence[float], world: int) -> list[int]:
    """An owner for each matrix: the costliest first, each to the process that has least to do."""
    load = [0.0] * world
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[index] = min(range(world), key=load.__getitem__)
        load[owners[index]] += costs[index]
    return owners


def share_state(matrix: Owned, state: Any) -> None:
    """Give every process what the owner remembers: a dataclass of tensors, numbers and None."""
    source = dist.get_global_rank(matrix.group, matrix.owner)
    known = {f.name: getattr(state, f.name) for f in fields(state)}
    tensors = [value for value in known.values() if isinstance(value, Tensor)]
    numbers = {name: value for name, value in known.items() if isinstance(value, (int, float))}
    sent = torch.tensor([*numbers.values()], dtype=torch.float64).to(tensors[0].device)
    for t in (sent, *tensors):
        dist.broadcast(t, source, matrix.group)
    for (name, old), new in zip(numbers.items(), sent.tolist()):
        setattr(state, name, type(old)(new))

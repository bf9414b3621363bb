"""One run in several processes, as torchrun starts them: each takes its share of every batch.

All processes draw the same batches and hold the same parameters. After each backward pass their
gradients and losses are averaged, so that all take the same step; when to stop and when to save is
what the first one decides. It alone writes. A checkpoint is the run's, whole: any number of
processes may go on with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pathsgd_lab.errors import RunError
from pathsgd_lab.tasks import Batch, State


class Together:
    """The processes that train together; one process alone, unless torchrun started several."""

    def __init__(self) -> None:
        self.rank, self.count = (
            (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        )

    def check(self, batch_size: int) -> None:
        """Refuse a batch that cannot be shared out."""
        if batch_size % self.count:
            raise RunError(
                f"a batch of {batch_size} sequences cannot be shared out to {self.count} processes"
            )

    def share(self, batch: Batch, every_step: bool) -> Batch:
        """This process's part of a batch."""
        targets = batch.targets.chunk(self.count, 1 if every_step else 0)[self.rank]
        return Batch(batch.inputs.chunk(self.count, 1)[self.rank], targets, batch.carry)

    def part_of(self, state: State | None) -> State | None:
        """This process's part of what the whole batch carries on."""
        return (
            None
            if state is None
            else tuple(part.chunk(self.count)[self.rank].clone() for part in state)
        )

    def whole(self, state: State | None) -> State | None:
        """What the whole batch carries on, from the parts that the processes have."""
        if state is None or self.count == 1:
            return state
        parts: list[Any] = [None] * self.count
        dist.all_gather_object(parts, state)
        return tuple(torch.cat(of_all) for of_all in zip(*parts, strict=True))

    def averaged(self, loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The mean loss of all processes; their gradients become the mean of all."""
        if self.count == 1:
            return loss
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([loss.reshape(1), *(g.reshape(-1) for g in gradients)]).div_(self.count)
        dist.all_reduce(flat)
        for gradient, mean in zip(
            gradients, flat[1:].split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))
        return flat[0]

    def from_first(self, thing: Any) -> Any:
        """What the first process has, in all of them."""
        if self.count == 1:
            return thing
        things = [thing]
        dist.broadcast_object_list(things)
        return things[0]

    def any(self, flag: bool) -> bool:
        """Whether it is so in some process."""
        if self.count == 1:
            return flag
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags)
        return bool(flags)


@contextmanager
def together() -> Iterator[Together]:
    """Join the processes that torchrun started beside this one, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield Together()
        return
    dist.init_process_group("gloo")
    try:
        yield Together()
    finally:
        dist.destroy_process_group()

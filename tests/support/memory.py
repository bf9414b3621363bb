"""Peak share of a sharded model that is whole during a step, as torch's allocator reports it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile

from pathsgd import PathAdam

LAYERS, STEPS = 8, 5


def linear(width: int) -> nn.Module:
    return nn.Linear(width, width)


def convolution(width: int) -> nn.Module:
    return nn.Conv2d(width, width, 3, padding=1)


KINDS = {
    "layers, one row": (linear, 256, (256,)),
    "layers, sequences": (linear, 256, (2, 256)),
    "convolutions": (convolution, 64, (64, 3, 3)),
}


def shard(model: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    """Module by module, as one does it."""
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def peaks_of(kind: str) -> tuple[list[float], int]:
    """The peak in layers over some steps with a measurement; the collectives of one step.

    Layers of single precision. Anything smaller than such a layer is ignored: shards, in four
    processes or more.
    """
    torch.manual_seed(0)
    layer, width, shape = KINDS[kind]
    model = shard(nn.Sequential(*(m for _ in range(LAYERS) for m in (layer(width), nn.ReLU()))))
    bytes_of_one = max(4 * p.numel() for p in model.parameters())
    optimizer, found = PathAdam(model), []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        model(torch.randn(1, *shape, generator=generator)).square().mean().backward()
        if step < STEPS:
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
                optimizer.step()
            found.append(_peak(seen, bytes_of_one) / bytes_of_one)
    with CommDebugMode() as debug:
        optimizer.step()
    return found, debug.get_total_counts()


def _peak(seen: profile, least: int) -> int:
    """The most bytes that pieces of at least this size had at once."""
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    now, most = 0, 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if abs(event.nbytes()) >= least:
            now += event.nbytes()
            most = max(most, now)
    return most

"""The same global batch in several processes.    torchrun --nproc-per-node 2 examples/ddp.py

Every process computes the metric for itself, from the parameters, which are equal everywhere. Only
the shapes of the inputs are agreed on, so that sequences of different lengths do not give different
metrics; with `example_inputs=` not even that. Gradients are accumulated over two half batches: the
metric is measured once a step.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from pathsgd import PathAdam
from task import Net, sequences


def train(epochs: int = 3, batch: int = 32, parts: int = 2) -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = PathAdam(model, lr=1e-2)
    sampler = DistributedSampler(sequences(), shuffle=True)
    loader = DataLoader(
        sequences(), batch_size=batch // dist.get_world_size() // parts, sampler=sampler
    )
    loss = torch.zeros(())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            is_last = i % parts == parts - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = mse_loss(model(x), y) / parts
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        dist.all_reduce(loss.detach())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss * parts / dist.get_world_size():.5f}")
    return loss.item()


def main() -> float:
    dist.init_process_group("gloo")
    try:
        return (
            train()
        )  # freed after its group, the parallel model may wait for threads of gloo for ever
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Shared by the examples on handwritten digits: images, two nets, training, a rescaled twin.

The data is the lab's: `pathsgd data fetch mnist`, or a folder of your own in $PATHSGD_DATA or
--data-dir.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pathsgd
from pathsgd_lab.tasks.smnist import SequentialMnistTask

FACTOR = 10.0
NETS = {
    "MLP": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10)
    ),
    "CNN": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 6 * 6, 100), nn.ReLU(), nn.Linear(100, 10),
    ),
}  # fmt: skip


def images(split: str, data_dir: Path | None, limit: int) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in [0, 1], and their labels (N,)."""
    task = SequentialMnistTask(valid_size=0, limit=limit)
    found = task.prepare(data_dir).sets[split]
    return found.pixels.reshape(-1, 1, 28, 28).float().div(255), found.labels


def trained(kind: str, seed: int, epochs: int, x: Tensor, y: Tensor) -> nn.Sequential:
    """A net as people have it: by Adam at its default rate."""
    torch.manual_seed(seed)
    net = NETS[kind]()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net


def rescaled(net: nn.Module, x: Tensor, seed: int) -> nn.Module:
    """The same function, its units multiplied by up to FACTOR and divided by as much."""
    generator = torch.Generator().manual_seed(seed)
    return pathsgd.random_rescaling(
        copy.deepcopy(net), x[:1], low=1 / FACTOR, high=FACTOR, generator=generator
    )


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return (torch.cat([net(part) for part in x.split(1000)]).argmax(1) == y).double().mean().item()


def write_record(path: Path, script: str, settings: dict[str, Any], results: Any) -> None:
    versions = {"pathsgd": pathsgd.__version__, "torch": torch.__version__}
    command = f"python examples/{Path(script).name}"
    record = {"command": command, "settings": settings, "versions": versions, "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {path}")

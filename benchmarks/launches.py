"""What a step costs on a device, in operations and waits, counted on the test device.

python benchmarks/launches.py
    prints the table of docs/scale.md; needs the folder tests/ beside it
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from pathsgd import PathAdam
from pathsgd.metric.geometry import Geometry
from support.device import DEVICE, counting


class Recurrent(nn.Module):
    """A plain recurrent net that reads the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 100, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(100, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 10),
    )


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)
    )


def three_normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 24 * 24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


MODELS = {
    "MLP 784-256-256-10": (mlp, (4, 784)),
    "CNN 16": (cnn, (2, 1, 28, 28)),
    "784-256-10, batch normalisation": (normalised, (4, 784)),
    "two convolutions, one layer, biases, batch normalisation after each": (
        three_normalised,
        (4, 1, 28, 28),
    ),
    "RNN, 100 units": (Recurrent, (2, 50, 2)),
}


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor
) -> list[tuple[int, int]]:
    """(operations, waits) of eight steps."""
    found = []
    for _ in range(8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with counting() as counts:
            optimizer.step()
        found.append((counts.launches, counts.syncs))
    return found


def main() -> None:
    """Print the table."""
    print(
        "| model | Adam(foreach=True) | PathAdam, between measurements | PathAdam, with a "
        "measurement |"
    )
    print("|---|---|---|---|")
    for name, (make, shape) in MODELS.items():
        model, x = make().to(DEVICE), torch.randn(shape).to(DEVICE)
        adam = steps(model, torch.optim.Adam(model.parameters(), foreach=True), x)[-1]
        ours = steps(model, PathAdam(model, refresh_every=3), x)
        print(
            f"| {name} | {adam[0]}, {adam[1]} | {ours[4][0]}, {ours[4][1]} | {ours[6][0]}, "
            f"{ours[6][1]} |"
        )
    model, inputs = Recurrent().to(DEVICE), (torch.randn(1, 750, 2).to(DEVICE),)
    geometry = Geometry(model)
    root = geometry.measure(inputs).next_root
    with counting() as counts:
        geometry.measure(inputs, root=root)
    print(
        f"\nThe closed form of that RNN at T = 750: {counts.launches} operations, {counts.syncs} "
        "wait."
    )


if __name__ == "__main__":
    main()

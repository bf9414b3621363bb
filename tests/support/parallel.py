"""Models, optimisers and batches for tests of several processes (processes.py): equal in each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP

BATCH = 8


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 6, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "recurrent": (Recurrent, (5, 2)),
    "feed-forward": (feed_forward, (3,)),
    "batch norm": (normalised, (3,)),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "PathAdam": lambda model: PathAdam(model, lr=3e-3, refresh_every=2),
    "PathSGD": lambda model: PathSGD(model, lr=1e-2, momentum=0.9),
    # Larger bases pass rounding on: most directions have next to no gradient.
    "PathSOAP": lambda model: PathSOAP(
        model, lr=3e-3, max_dim=6, refresh_every=2, precondition_frequency=5
    ),
    "PathMuon": lambda model: PathMuon(model, lr=3e-3, refresh_every=2),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name][0]().double()


def batch_of(step: int, shape: tuple[int, ...], length: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    if length is not None:
        shape = (length, *shape[1:])
    x = torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)
    return x, x.flatten(1).sum(1, keepdim=True)


def share(x: Tensor) -> Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def assert_ranks_agree(results: list[dict[str, Tensor]]) -> None:
    for result in results[1:]:
        for name, value in results[0].items():
            assert torch.equal(value, result[name]), name

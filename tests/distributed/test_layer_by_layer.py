"""Measuring a sharded model gathers layer by layer: the same steps, only a few layers whole."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pathsgd import PathAdam, PathSGD
from pathsgd.distributed.sharded import whole_parameters
from pathsgd.metric import geometry
from support.memory import LAYERS, peaks_of, shard
from support.parallel import assert_ranks_agree
from support.processes import in_processes

pytestmark = pytest.mark.skipif(
    torch.__version__.startswith("2.6."),
    reason="torch 2.6 cannot run a module of fully_shard on the CPU",
)


class Residual(nn.Module):
    """A stream that two blocks add to: parameters enter its units at places of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.last(torch.relu(h))


class Loop(nn.Module):
    """One layer that is used repeatedly, and one used twice, the second time transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.over = nn.Linear(3, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x).relu()
        for _ in range(4):
            h = self.over(h).relu()
        return h @ self.into.weight


class Recurrences(nn.Module):
    """Two recurrent layers with another between them: no closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.RNN(3, 5, nonlinearity="relu", batch_first=True)
        self.between = nn.Linear(5, 6)
        self.second = nn.RNN(6, 4, nonlinearity="relu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)[0]).relu())[0][:, -1]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.ConvTranspose1d(4, 5, 2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(15, 2),
    )  # fmt: skip


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2))


def half_frozen() -> nn.Module:
    model = layers()
    for p in model[0].parameters():
        p.requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (layers, (3,)),
    "layers, sequences": (layers, (4, 3)),
    "layers, one frozen": (half_frozen, (3,)),
    "convolutions": (convolutions, (3, 3)),
    "residual": (Residual, (3,)),
    "loop": (Loop, (3,)),
    "recurrences": (Recurrences, (4, 3)),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "absolute": lambda m: PathAdam(m, lr=3e-3),
    "relative": lambda m: PathAdam(m, lr=3e-3, metric="relative"),
    "paper": lambda m: PathSGD(m, lr=1e-3, metric="paper", scale="sgd", clip=0.5),
    "both terms": lambda m: PathAdam(m, lr=3e-3, terms="both"),
}
TABLE = [
    (name, kind)
    for name in MODELS
    for kind in OPTIMIZERS
    if kind in ("absolute", "relative") or name == "layers"
]


def train(
    name: str,
    kind: str,
    sharded: bool,
    dtype: torch.dtype = torch.float64,
    mesh: tuple[int, ...] | None = None,
) -> dict[str, Tensor]:
    torch.manual_seed(3)
    model, shape = MODELS[name][0]().to(dtype), MODELS[name][1]
    if sharded:
        # The layers of a loop read each other's weights.
        on = (
            None
            if mesh is None
            else init_device_mesh("cpu", mesh, mesh_dim_names=("copies", "parts"))
        )
        model = fully_shard(model, mesh=on) if isinstance(model, Loop) else shard(model, on)
    optimizer = OPTIMIZERS[kind](model)
    for step in range(5):
        # All see the same: statistics of a batch are those of one process.
        x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(step), dtype=dtype)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in whole_parameters(model).items()}


@pytest.mark.parametrize(("name", "kind"), TABLE)
def test_steps_are_those_of_the_whole_model(name: str, kind: str) -> None:
    (alone,) = in_processes(1, train, name, kind, False)
    results = in_processes(2, train, name, kind, True)
    assert_ranks_agree(results)
    # A bias in front of a batch normalisation has only rounding as gradient, which Adam turns into
    # a step.
    noise = {"0.weight", "0.bias"} if name == "convolutions" else set()
    for parameter in alone.keys() - noise:
        torch.testing.assert_close(results[0][parameter], alone[parameter], rtol=1e-6, atol=1e-12)


def test_copies_and_parts_at_once() -> None:
    (alone,) = in_processes(1, train, "layers, sequences", "absolute", False)
    results = in_processes(4, train, "layers, sequences", "absolute", True, torch.float64, (2, 2))
    assert_ranks_agree(results)
    torch.testing.assert_close(results[0], alone, rtol=1e-6, atol=1e-12)


def test_single_precision() -> None:
    """Matrices that one row is given to are not squared there (network/unsquared.py)."""
    (alone,) = in_processes(1, train, "layers", "absolute", False, torch.float32)
    results = in_processes(2, train, "layers", "absolute", True, torch.float32)
    assert_ranks_agree(results)
    torch.testing.assert_close(results[0], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["layers, sequences", "residual"])
def test_the_measurement_of_other_devices(name: str) -> None:
    """It looks at all ranges at once, at its end; here on the CPU."""
    for usual, other in zip(
        *(in_processes(2, train_elsewhere, name, forced) for forced in (False, True))
    ):
        torch.testing.assert_close(other, usual, rtol=1e-6, atol=1e-12)


def train_elsewhere(name: str, forced: bool) -> dict[str, Tensor]:
    where = (lambda parameters: torch.device("meta")) if forced else geometry._device
    with patch.object(geometry, "_device", where):
        return train(name, "relative", True)


@pytest.mark.parametrize(
    ("kind", "layers_at_once"), [("layers, one row", 3), ("layers, sequences", 6)]
)
def test_few_layers_are_whole_at_once(kind: str, layers_at_once: int) -> None:
    """With 1 row a layer is whole in float32; with several, also its square and kappa, in float64.

    gloo frees a gathered layer with a delay, so the smallest peak of several steps counts.
    """
    for peaks, collectives in in_processes(4, peaks_of, kind):
        assert 1 <= min(peaks) <= layers_at_once, peaks
        # Of a weight and a bias: forth, back, kappa, and sums by rows.
        assert collectives <= 8 * LAYERS

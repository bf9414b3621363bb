"""The settings every benchmark runs, their models and data, and how time is measured.

Times are medians of interleaved bursts in one process, as ratios to a plain SGD step with
torch.nn.RNN in the same run. Denormals are flushed for every method.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathsgd
from pathsgd.metric.geometry import Geometry
from pathsgd.paths.kappa import Terms

BURST = 0.03
"""Seconds that a method runs before it is another one's turn."""


@dataclass(frozen=True)
class Setting:
    """Sizes of one experiment of the paper."""

    hidden: int
    steps: int
    batch: int
    inputs: int
    outputs: int
    every_step: bool = False
    vocabulary: int = 0
    """Symbols enter through an embedding when this is not zero."""

    @property
    def flops(self) -> float:
        """Multiply-adds of one forward and backward pass, times two."""
        rows = self.steps if self.every_step else 1
        return (
            6.0
            * self.batch
            * self.hidden
            * (self.steps * (self.hidden + self.inputs) + rows * self.outputs)
        )


SETTINGS = {
    "A100": Setting(100, 100, 16, 2, 1),
    "A400": Setting(100, 400, 16, 2, 1),
    "A750": Setting(100, 750, 16, 2, 1),
    "M784": Setting(100, 784, 100, 1, 10),
    "W20": Setting(200, 20, 32, 200, 10_000, every_step=True, vocabulary=10_000),
    "C50": Setting(2048, 50, 64, 50, 50, every_step=True, vocabulary=50),
}


class Net(nn.Module):
    """[embedding ->] RNN -> linear, as users write it."""

    def __init__(self, setting: Setting, rnn: type[nn.RNN]) -> None:
        super().__init__()
        self.every_step = setting.every_step
        self.embedding = None
        if setting.vocabulary > setting.inputs:
            self.embedding = nn.Embedding(setting.vocabulary, setting.inputs)
        elif setting.vocabulary:
            self.embedding = nn.Embedding.from_pretrained(torch.eye(setting.vocabulary))
        self.rnn = rnn(setting.inputs, setting.hidden, nonlinearity="relu")
        self.out = nn.Linear(setting.hidden, setting.outputs)
        with torch.no_grad():
            self.rnn.weight_hh_l0.normal_(0, (2 / setting.hidden) ** 0.5)

    def features(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        states, last = self.rnn(x)
        return states.flatten(0, 1) if self.every_step else last[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.features(x))


def batch_of(setting: Setting) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = setting.batch * (setting.steps if setting.every_step else 1)
    if setting.vocabulary:
        x = torch.randint(setting.vocabulary, (setting.steps, setting.batch), generator=generator)
    else:
        x = torch.rand(setting.steps, setting.batch, setting.inputs, generator=generator)
    if setting.outputs == 1:
        return x, torch.rand(rows, 1, generator=generator)
    return x, torch.randint(setting.outputs, (rows,), generator=generator)


def make_net(setting: Setting, rnn: type[nn.RNN]) -> Net:
    torch.manual_seed(0)
    return Net(setting, rnn)


def loss_of(net: Net, x: Tensor, y: Tensor, fused_loss: bool) -> Tensor:
    if fused_loss and net.out.out_features > 256:
        return pathsgd.nn.linear_cross_entropy(net.features(x), net.out.weight, net.out.bias, y)
    out = net(x)
    return F.mse_loss(out, y) if y.is_floating_point() else F.cross_entropy(out, y)


def training_step(
    net: Net, setting: Setting, optimizer: torch.optim.Optimizer, fused_loss: bool
) -> Callable[[], None]:
    x, y = batch_of(setting)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(net, x, y, fused_loss).backward()
        optimizer.step()

    return step


def measurement(net: nn.Module, setting: Setting, terms: Terms) -> Callable[[], None]:
    """The metric as an optimiser measures it, from the last estimate of the Perron root."""
    geometry, inputs, root = Geometry(net), (batch_of(setting)[0],), None

    def measure() -> None:
        nonlocal root
        root = geometry.measure(inputs, terms, exact=False, root=root).next_root

    return measure


def interleaved(
    functions: dict[str, Callable[[], object]], seconds: float, most: int = 200
) -> dict[str, float]:
    """Median seconds of each function, all of them taking turns until the time is up.

    A turn is a burst of calls of about BURST seconds, at least one call: in training a step follows
    a step of the same kind, and finds its own data, code and branch history in the caches.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    calls = {}
    for name, function in functions.items():
        function()
        calls[name] = max(1, round(BURST / _seconds_per_call(function, 1)))
    start = time.perf_counter()
    rounds = 0
    while rounds < 5 or (rounds < most and time.perf_counter() - start < seconds):
        for name, function in functions.items():
            taken[name].append(_seconds_per_call(function, calls[name]))
        rounds += 1
    return {name: statistics.median(values) for name, values in taken.items()}


def _seconds_per_call(function: Callable[[], object], calls: int) -> float:
    before = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - before) / calls


def machine() -> dict[str, object]:
    """What a record says about where it was taken."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":")[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "backend": str(pathsgd.nn.backend()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def gemm_peak(seconds: float = 1.0) -> float:
    """float32 flops per second of a large matrix product with the current number of threads."""
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    return 2 * 1024**3 / interleaved({"gemm": lambda: a @ b}, seconds)["gemm"]

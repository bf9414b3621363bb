"""A training step of PathAdam at its defaults against torch.optim.Adam's, on models of every kind.

    python benchmarks/models.py [--models mlp resnet18] [--seconds 8] [--only time]
        [--json FILE] [--page]

Columns: Adam's step in milliseconds; ratio of PathAdam's step to it with the metric measured at
every step, and at every tenth; PathAdam's first step over one of Adam's; and the peak memory of
training with PathAdam over that with Adam, each in its own process, without what was there before
the model. Memory has two columns: `memory` is what a process allocates, with all pages of the
libraries' files already read; `with code` adds those pages as far as the three steps are the first
to need them (machine code of torch's operations, shared by all processes). One thread, denormals
flushed, methods take turns, medians of RUNS processes.

--page writes the record's table into docs/performance.md; --compare prints the ratios that have
moved since the record; --only measures one half of the columns and keeps the record's other half.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from settings import interleaved, machine
from torch import Tensor, nn

import pathsgd

HERE = Path(__file__).parent
RECORD, PAGE = HERE / "records" / "models.json", HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- benchmark models -->\n", "<!-- end of benchmark -->\n"
MOVED = 0.10  # by so much of itself a ratio must differ to be reported
RUNS = 3  # processes whose memory is measured: how malloc fits things differs from one to the next
READ_ALL = 22  # MADV_POPULATE_READ
Made = tuple[nn.Module, Tensor]


class LastOutput(nn.Module):
    """A recurrent layer and what reads its last step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][-1])


class Loop(nn.Module):
    """An RNN as people write it."""

    def __init__(self, hidden: int = 100) -> None:
        super().__init__()
        self.into, self.rec, self.out = (
            nn.Linear(2, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], self.rec.in_features)
        for x_t in x:
            h = torch.relu(self.into(x_t) + self.rec(h))
        return self.out(h)


class Residual(nn.Module):
    """A residual block: two 3 x 3 convolutions, or three with a narrow one in the middle."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        kernels = [3, 3] if expansion == 1 else [1, 3, 1]
        widths = [inputs, *[width] * (len(kernels) - 1), width * expansion]
        layers: list[nn.Module] = []
        for k, (kernel, a, b) in enumerate(zip(kernels, widths, widths[1:])):
            step = stride if k == len(kernels) - 2 else 1
            layers += [
                nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(),
            ]
        self.way = nn.Sequential(*layers[:-1])
        same = stride == 1 and inputs == width * expansion
        self.past = (
            nn.Identity() if same else nn.Conv2d(inputs, width * expansion, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.way(x) + self.past(x))


def resnet(blocks: tuple[int, ...], expansion: int) -> nn.Module:
    """Residual nets for small images: (2, 2, 2, 2) has 18 layers, narrow (3, 4, 6, 3) has 50."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    inputs = 64
    for k, count in enumerate(blocks):
        for block in range(count):
            layers.append(Residual(inputs, 64 << k, 2 if k and block == 0 else 1, expansion))
            inputs = (64 << k) * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class UNet(nn.Module):
    """Down twice, up twice, with what was there before beside it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = self._block(1, width), self._block(width, 2 * width)
        self.lowest = self._block(2 * width, 4 * width)
        self.third, self.fourth = self._block(6 * width, 2 * width), self._block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _block(inputs: int, width: int) -> nn.Module:
        two = [
            nn.Conv2d(inputs, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        ]
        return nn.Sequential(*two)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(nn.functional.max_pool2d(a, 2))
        c = nn.functional.interpolate(self.lowest(nn.functional.max_pool2d(b, 2)), scale_factor=2)
        d = nn.functional.interpolate(self.third(torch.cat([b, c], 1)), scale_factor=2)
        return self.out(self.fourth(torch.cat([a, d], 1)))


class Tied(nn.Module):
    """An autoencoder whose decoder is the encoder turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(784, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.two(torch.relu(self.one(x))))
        return torch.relu(h @ self.two.weight) @ self.one.weight


class Words(nn.Module):
    """A language model of 10,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(10_000, 128), nn.RNN(128, 128, nonlinearity="relu")
        self.out = nn.Linear(128, 10_000)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.embedding(x))[0])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn() -> nn.Module:
    one, two = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
    dense = [nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(one, nn.ReLU(), nn.MaxPool2d(2), two, nn.ReLU(), nn.MaxPool2d(2), *dense)


def rnn(layer: type[nn.Module], width: int = 100, **options: object) -> Made:
    return LastOutput(layer(2, 100, nonlinearity="relu", **options), width), torch.rand(100, 16, 2)


MODELS: dict[str, tuple[str, Callable[[], Made]]] = {
    "mlp": ("MLP 784-1024-1024-10, batch 64", lambda: (mlp(), torch.rand(64, 784))),
    "rnn": ("RNN, 100 units, T = 100, batch 16", lambda: rnn(nn.RNN)),
    "deep": ("two layers of it", lambda: rnn(nn.RNN, num_layers=2)),
    "deep-fused": ("two layers, pathsgd.nn.RNN", lambda: rnn(pathsgd.nn.RNN, num_layers=2)),
    "bidirectional": ("both directions", lambda: rnn(nn.RNN, 200, bidirectional=True)),
    "loop": ("hand-written loop, T = 50", lambda: (Loop(), torch.rand(50, 16, 2))),
    "cnn": ("CNN, 28 x 28, batch 64", lambda: (cnn(), torch.rand(64, 1, 28, 28))),
    "resnet18": (
        "ResNet-18, 32 x 32, batch 16",
        lambda: (resnet((2, 2, 2, 2), 1), torch.rand(16, 3, 32, 32)),
    ),
    "resnet50": (
        "ResNet-50, 32 x 32, batch 16",
        lambda: (resnet((3, 4, 6, 3), 4), torch.rand(16, 3, 32, 32)),
    ),
    "unet": ("U-Net, 64 x 64, batch 8", lambda: (UNet(), torch.rand(8, 1, 64, 64))),
    "tied": ("tied autoencoder, batch 64", lambda: (Tied(), torch.rand(64, 784))),
    "words": ("10,000 words, T = 20, batch 20", lambda: (Words(), torch.randint(10_000, (20, 20)))),
}
OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-6),
    "path": lambda m: pathsgd.PathAdam(m, lr=1e-6),
    "path_10": lambda m: pathsgd.PathAdam(m, lr=1e-6, refresh_every=10),
}


def step_of(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One training step on a fixed batch."""

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def times(name: str, seconds: float) -> dict[str, float]:
    """How long the steps of one model take."""
    torch.manual_seed(0)
    model, x = MODELS[name][1]()
    steps = {}
    first = 0.0
    for key, make in OPTIMISERS.items():
        one = copy.deepcopy(model)
        steps[key] = step_of(one, x, make(one))
        if key == "path":
            one(
                x
            ).square().mean().backward()  # torch's set-up at a first pass is not part of the step
            before = time.perf_counter()
            steps[key]()
            first = time.perf_counter() - before
    taken = interleaved(steps, seconds)
    adam = taken["adam"]
    return {
        "adam_ms": 1e3 * adam,
        "path": taken["path"] / adam,
        "path_10": taken["path_10"] / adam,
        "first": first / adam,
    }


def memories(name: str) -> dict[str, float]:
    """How much memory one model takes."""
    found = {}
    for column, pages in (("memory", "read"), ("memory_with_code", "unread")):
        adam, path = (
            statistics.median(peak_memory(name, optimiser, pages) for _ in range(RUNS))
            for optimiser in ("adam", "path")
        )
        found[column] = path / adam
        if pages == "read":
            found["adam_mb"] = adam
    return found


def peak_memory(name: str, optimiser: str, pages: str) -> float:
    """By how many MB the memory of a process grows that makes three steps."""
    command = [sys.executable, __file__, "--peak", name, optimiser, pages]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(name: str, optimiser: str, pages: str) -> None:
    torch.set_num_threads(1)
    if pages == "read":
        pathsgd.nn.backend()  # the kernels' library is there then
        read_all_pages()
    start_anew()
    before = largest_memory()
    model, x = MODELS[name][1]()
    step = step_of(model, x, OPTIMISERS[optimiser](model))
    for _ in range(3):
        step()
    print(largest_memory() - before)


def largest_memory() -> float:
    """Of this process so far, in MB."""
    # Not getrusage: what it says of a process begins with what its parent had.
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(peak.split()[1]) / 1024


def start_anew() -> None:
    """Give back what malloc keeps for later, and forget what the largest memory was."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def read_all_pages() -> None:
    """Have all pages of the files that this process maps in memory, its libraries above all."""
    system = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, last = line.split()
        if last.startswith("/") and rights.startswith("r"):
            begin, end = (int(number, 16) for number in place.split("-"))
            system.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), READ_ALL)


def table(record: dict[str, dict[str, dict[str, float]]]) -> str:
    """The record as the page has it."""
    lines = [
        "| model | Adam, ms | every step | every tenth | first step | memory | with code |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, r in record["models"].items():
        formats = {"adam_ms": ".1f", "path": ".2f", "path_10": ".2f", "first": ".1f"}
        formats |= {"memory": ".2f", "memory_with_code": ".2f"}
        cells = " | ".join(
            format(r[key], digits) if key in r else "" for key, digits in formats.items()
        )
        lines.append(f"| {MODELS[name][0]} | {cells} |")
    return "\n" + "\n".join(lines) + "\n\n"


def into_page(begin: str, text: str) -> None:
    """Put text between a mark of the page and the end that follows it."""
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + text + END + rest.split(END, 1)[1])


def moved(old: dict[str, dict[str, float]], new: dict[str, dict[str, float]]) -> list[str]:
    """Which ratios differ from the record's by more than noise."""
    return [
        f"{name}: {key} {old[name][key]:.2f} -> {new[name][key]:.2f}"
        for name in new
        for key in ("path", "path_10", "first", "memory", "memory_with_code")
        if name in old
        and key in old[name]
        and key in new[name]
        and abs(new[name][key] / old[name][key] - 1) > MOVED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=8.0, help="for the turns of one model")
    parser.add_argument(
        "--json", type=Path, default=RECORD, help="the record to write, or to compare with"
    )
    parser.add_argument(
        "--compare", action="store_true", help="only say what has moved since the record"
    )
    parser.add_argument(
        "--page", action="store_true", help="only put the record's table into the page"
    )
    parser.add_argument("--only", choices=("time", "memory"), help="one half of the columns")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print_peak(*options.peak)
        return
    known = json.loads(options.json.read_text()) if options.json.exists() else {"models": {}}
    if not options.page:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        found = {}
        for name in options.models:
            found[name] = {
                **(times(name, options.seconds) if options.only != "memory" else {}),
                **(memories(name) if options.only != "time" else {}),
            }
            print(name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)
        if options.compare:
            print("\n".join(moved(known["models"], found)) or "nothing has moved")
            return
        old = known["models"]
        together = {**old, **{name: {**old.get(name, {}), **new} for name, new in found.items()}}
        known = {
            "machine": machine(),
            "threads": 1,
            "models": {n: together[n] for n in MODELS if n in together},
        }
        options.json.write_text(json.dumps(known, indent=1) + "\n")
        if options.json != RECORD:  # the page shows the record
            return
    into_page(BEGIN, table(known))


if __name__ == "__main__":
    main()

"""How the cost of a training step scales: PathAdam beside torch.optim.Adam, and the metric alone.

    python benchmarks/scaling.py [--sweeps width steps] [--seconds 4] [--no-memory]
        [--json FILE] [--page]

One size of a model varies; everything else is fixed. Slopes are least-squares fits of log time to
log size: 1 = proportional, 0 = independent. A turn of a method is ten steps, so that "every tenth"
has one measurement in each. The metric alone is what an optimiser measures of the RNN, kappa1 alone
and both terms. Memory is the peak resident set over 20 training steps in a process of its own,
minus what it had before them (Linux). One thread, denormals flushed. --page writes the record's
tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from models import HERE, OPTIMISERS, cnn, into_page, step_of
from settings import (
    SETTINGS,
    Setting,
    batch_of,
    interleaved,
    machine,
    make_net,
    measurement,
    training_step,
)
from torch import Tensor, nn

import pathsgd

RECORD, BEGIN = HERE / "records" / "scaling.json", "<!-- benchmark scaling -->\n"
KINDS = {"torch": nn.RNN, "fused": pathsgd.nn.RNN}
METHODS = {"adam": "Adam", "path": "every step", "path_10": "every tenth"}
METRIC = {"kappa1": "κ₁", "both": "κ₁ + κ₂"}
TURN = 10


def mlp(width: int, depth: int) -> tuple[nn.Module, Tensor]:
    """`depth` layers of weights."""
    layers: list[nn.Module] = [nn.Linear(784, width), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), torch.rand(64, 784)


def rnn(**sizes: int) -> tuple[nn.Module, Tensor]:
    setting = recurrent_setting(**sizes)
    return make_net(setting, nn.RNN), batch_of(setting)[0]


def recurrent_setting(**sizes: int) -> Setting:
    return replace(SETTINGS["A100"], **sizes)


@dataclass(frozen=True)
class Sweep:
    """One size and its values; a model and its input for each."""

    label: str
    values: tuple[int, ...]
    make: Callable[[int], tuple[nn.Module, Tensor]]
    recurrent: str = ""
    """The size's name among those of an RNN, where the metric is measured by itself."""


SWEEPS = {
    "width": Sweep(
        "MLP of three layers by parameters", (128, 256, 512, 1024, 2048), lambda n: mlp(n, 3)
    ),
    "depth": Sweep("MLP of 256 units by layers", (2, 4, 8, 16, 32), lambda n: mlp(256, n)),
    "steps": Sweep("RNN by T", (50, 100, 200, 400, 800), lambda n: rnn(steps=n), "steps"),
    "hidden": Sweep("RNN by units", (50, 100, 200, 400), lambda n: rnn(hidden=n), "hidden"),
    "batch": Sweep("RNN by batch", (4, 16, 64, 256), lambda n: rnn(batch=n), "batch"),
    "images": Sweep("CNN by batch", (4, 16, 64, 128), lambda n: (cnn(), torch.rand(n, 1, 28, 28))),
}


def measured(sweep: Sweep, seconds: float) -> dict[str, Any]:
    """The sizes of a sweep, and seconds of one step of each method at each of them."""
    sizes: list[int] = []
    taken: dict[str, list[float]] = {}
    for value in sweep.values:
        torch.manual_seed(0)
        model, x = sweep.make(value)
        parameters = sum(p.numel() for p in model.parameters())
        sizes.append(parameters if "parameters" in sweep.label else value)
        for what, time in costs(sweep, value, model, x, seconds).items():
            taken.setdefault(what, []).append(time)
        print(
            sizes[-1],
            {what: round(1e3 * times[-1], 3) for what, times in taken.items()},
            flush=True,
        )
    return {"sizes": sizes, "seconds": taken}


def costs(
    sweep: Sweep, value: int, model: nn.Module, x: Tensor, seconds: float
) -> dict[str, float]:
    functions: dict[str, Callable[[], object]] = {}
    for method in METHODS:
        one = copy.deepcopy(model)
        functions[method] = step_of(one, x, OPTIMISERS[method](one))
    if sweep.recurrent:
        setting = recurrent_setting(**{sweep.recurrent: value})
        functions["kappa1"] = measurement(model, setting, "first")
        functions["both"] = measurement(model, setting, "both")
    taken = interleaved({what: in_turns(function) for what, function in functions.items()}, seconds)
    return {what: time / TURN for what, time in taken.items()}


def in_turns(function: Callable[[], object]) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(TURN):
            function()

    return turn


def slope(x: list[int], y: list[float]) -> float:
    """Of log y against log x, by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    rise = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b)) / sum(
        (p - mean_a) ** 2 for p in a
    )
    return round(rise, 2) + 0.0  # no -0.00 in a table


# ---- memory --------------------------------------------------------------------------------------


def peak_megabytes(name: str, kind: str) -> float:
    """Growth of a child's resident set by training, in megabytes."""
    command = [sys.executable, str(Path(__file__)), "--memory-of", name, kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def growth_of_memory(name: str, kind: str) -> float:
    setting = SETTINGS[name]
    warm = make_net(replace(setting, steps=2, batch=1), KINDS[kind])
    training_step(
        warm,
        replace(setting, steps=2, batch=1),
        torch.optim.SGD(warm.parameters(), 1e-9),
        fused_loss=True,
    )()
    net = make_net(setting, KINDS[kind])
    step = training_step(net, setting, torch.optim.SGD(net.parameters(), 1e-9), fused_loss=True)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of start-up
    before = _status("VmRSS")
    for _ in range(20):
        step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    """A size of this process in kilobytes, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


# ---- the page ------------------------------------------------------------------------------------


def table(record: dict[str, Any]) -> str:
    """The record as the page has it."""
    return "\n".join(["", *_steps(record), "", *_metric(record), "", *_memory(record), "", ""])


def _steps(record: dict[str, Any]) -> list[str]:
    head = "".join(f" {METHODS[m]}{', ms' if m == 'adam' else ''} | slope |" for m in METHODS)
    lines = ["| what grows | sizes |" + head, "| --- | --- |" + " --- | ---: |" * len(METHODS)]
    for name, found in _sweeps(record):
        adam, cells = found["seconds"]["adam"], []
        for method in METHODS:
            times = found["seconds"][method]
            shown = [
                f"{1e3 * t:.3g}" if method == "adam" else f"{t / a:.2f}"
                for t, a in zip(times, adam)
            ]
            cells.append(f" {', '.join(shown)} | {slope(found['sizes'], times):.2f} |")
        lines.append(
            f"| {SWEEPS[name].label} | {', '.join(map(_short, found['sizes']))} |" + "".join(cells)
        )
    return lines


def _metric(record: dict[str, Any]) -> list[str]:
    lines = [
        "| the metric alone, ms | sizes |"
        + "".join(f" {label} | slope |" for label in METRIC.values())
    ]
    lines.append("| --- | --- |" + " --- | ---: |" * len(METRIC))
    for name, found in _sweeps(record):
        if SWEEPS[name].recurrent:
            every = [
                (found["seconds"][what], slope(found["sizes"], found["seconds"][what]))
                for what in METRIC
            ]
            cells = [
                f" {', '.join(f'{1e3 * t:.3g}' for t in times)} | {rise:.2f} |"
                for times, rise in every
            ]
            lines.append(
                f"| {SWEEPS[name].label} | {', '.join(map(_short, found['sizes']))} |"
                + "".join(cells)
            )
    return lines


def _memory(record: dict[str, Any]) -> list[str]:
    lines = [
        "| peak memory of training, MB | torch.nn.RNN | pathsgd.nn.RNN |",
        "| --- | ---: | ---: |",
    ]
    return lines + [
        f"| {n} | {m['torch']:.1f} | {m['fused']:.1f} |"
        for n, m in record["memory_megabytes"].items()
    ]


def _sweeps(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, record["sweeps"][name]) for name in SWEEPS if name in record["sweeps"]]


def _short(size: int) -> str:
    return f"{size:,}" if size < 10_000 else f"{size / 1e6:.2g}M"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", nargs="*", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for the turns at one size")
    parser.add_argument("--no-memory", action="store_true", help="keep the record's memory")
    parser.add_argument(
        "--json", type=Path, default=RECORD, help="the record to write; sweeps not run are kept"
    )
    parser.add_argument(
        "--page", action="store_true", help="only put the record's tables into the page"
    )
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if options.memory_of:
        print(growth_of_memory(*options.memory_of))
        return
    known = (
        json.loads(options.json.read_text())
        if options.json.exists()
        else {"sweeps": {}, "memory_megabytes": {}}
    )
    if not options.page:
        for name in options.sweeps:
            print(SWEEPS[name].label)
            known["sweeps"][name] = measured(SWEEPS[name], options.seconds)
        if not options.no_memory:
            known["memory_megabytes"] = {
                n: {k: peak_megabytes(n, k) for k in KINDS} for n in ("A750", "M784")
            }
        known = {
            "machine": machine(),
            "threads": 1,
            **{key: known[key] for key in ("sweeps", "memory_megabytes")},
        }
        options.json.write_text(json.dumps(known, indent=1) + "\n")
    if options.json == RECORD:  # the page shows the record
        into_page(BEGIN, table(known))


if __name__ == "__main__":
    main()

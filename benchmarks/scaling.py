"""How cost grows with the length T, the width H and the batch B, and the peak memory of a step.

    python benchmarks/scaling.py [--threads 1] [--seconds 1] [--json benchmarks/records]

From the adding problem's sizes (H = 100, T = 400, B = 16) one of the three varies. The last column is the slope on
logarithmic axes, by least squares: 1 is proportional, 0 is independent. Memory is the peak of the resident set over 20
training steps in a process of its own, above what it had before them (Linux).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from settings import SETTINGS, Setting, interleaved, machine, make_net, measurement, training_step
from torch import nn

import pathsgd

BASE = SETTINGS["A400"]
SWEEPS = {"steps": [100, 200, 400, 800, 1600], "hidden": [50, 100, 200, 400], "batch": [4, 16, 64, 256]}
KINDS = {"torch": nn.RNN, "fused": pathsgd.nn.RNN}


def costs(setting: Setting, seconds: float) -> dict[str, float]:
    """Seconds of an SGD step with either RNN, and of the metric with kappa1 and with both terms."""
    functions: dict[str, Callable[[], object]] = {}
    for kind, rnn in KINDS.items():
        net = make_net(setting, rnn)
        optimizer = torch.optim.SGD(net.parameters(), 1e-9)
        functions[f"{kind} step"] = training_step(net, setting, optimizer, fused_loss=True)
    net = make_net(setting, nn.RNN)
    functions["kappa1"] = measurement(net, setting, "first")
    functions["kappa1 + kappa2"] = measurement(net, setting, "both")
    return interleaved(functions, seconds)


def slope(x: list[int], y: list[float]) -> float:
    """Of log y against log x, by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b)) / sum((p - mean_a) ** 2 for p in a)


def peak_megabytes(name: str, kind: str) -> float:
    """Growth of a child's resident set by training, in megabytes."""
    command = [sys.executable, str(Path(__file__)), "--memory-of", name, kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def growth_of_memory(name: str, kind: str) -> float:
    setting = SETTINGS[name]
    warm = make_net(replace(setting, steps=2, batch=1), KINDS[kind])
    training_step(warm, replace(setting, steps=2, batch=1), torch.optim.SGD(warm.parameters(), 1e-9), fused_loss=True)()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path, help="directory for the record")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    if options.memory_of:
        print(growth_of_memory(*options.memory_of))
        return
    sweeps = []
    for variable, values in SWEEPS.items():
        rows = [costs(replace(BASE, **{variable: value}), options.seconds) for value in values]
        print(f"\nmilliseconds by {variable:8}" + "".join(f"{value:>9}" for value in values) + "    slope")
        for what in rows[0]:
            times = [row[what] for row in rows]
            found = slope(values, times)
            sweeps.append({"variable": variable, "values": values, "what": what, "seconds": times, "slope": found})
            print(f"{what:24}" + "".join(f"{1e3 * t:9.2f}" for t in times) + f"{found:9.2f}", flush=True)
    memory = {name: {kind: peak_megabytes(name, kind) for kind in KINDS} for name in ("A750", "M784")}
    print("\npeak memory of training, MB")
    for name, found_of in memory.items():
        print(f"{name:24}" + "".join(f"  {kind} {size:.1f}" for kind, size in found_of.items()))
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        record = {**machine(), "threads": options.threads, "sweeps": sweeps, "memory_megabytes": memory}
        (options.json / "scaling.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The recurrent layer alone, forward and backward: torch.nn.RNN, ours, oneDNN, a compiled scan.

    python benchmarks/layers.py [--cases A100 deep packed] [--seconds 4]
        [--no-onednn] [--no-scan] [--json FOLDER]

Columns: milliseconds for both passes of torch.nn.RNN, and the others as ratios to it; one thread.
The loss sums what the output layer would read. oneDNN: pip installs it into build/onednn (the CPU
package with GNU's OpenMP); a small program is compiled against it and runs in its own process; its
layers get a gradient at every step. The scan is `torch._higher_order_ops.scan` under torch.compile.
If one of them cannot be set up, a note below the table gives the reason.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from settings import SETTINGS, interleaved, machine
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import pathsgd

HERE = Path(__file__).parent
HOME = HERE.parent / "build" / "onednn"
PACKAGES = ("onednn-cpu-gomp", "onednn-devel-cpu-gomp")


@dataclass(frozen=True)
class Case:
    """One layer or stack at the sizes of a setting."""

    setting: str = "A100"
    layers: int = 1
    directions: int = 1
    batch_first: bool = False
    packed: bool = False

    @property
    def options(self) -> dict[str, object]:
        return {
            "num_layers": self.layers, "bidirectional": self.directions == 2,
            "batch_first": self.batch_first,
        }  # fmt: skip


CASES = {
    "A100": Case(),
    "A400": Case("A400"),
    "M784": Case("M784"),
    "deep": Case(layers=2),
    "both": Case(directions=2),
    "batch_first": Case(batch_first=True),
    "packed": Case(packed=True),
}


def data_of(case: Case) -> Tensor | PackedSequence:
    sizes = SETTINGS[case.setting]
    x = torch.rand(
        sizes.steps, sizes.batch, sizes.inputs, generator=torch.Generator().manual_seed(0)
    )
    if case.packed:  # lengths from half of the steps to all of them
        lengths = torch.linspace(sizes.steps, sizes.steps / 2, sizes.batch).long()
        return pack_padded_sequence(x, lengths)
    return x.transpose(0, 1).contiguous() if case.batch_first else x


def passes(case: Case, layer: type[nn.RNN]) -> Callable[[], None]:
    """Forward and backward of a layer; the loss reads the last states."""
    sizes, x = SETTINGS[case.setting], data_of(case)
    torch.manual_seed(0)
    rnn = layer(sizes.inputs, sizes.hidden, nonlinearity="relu", **case.options)
    with torch.no_grad():
        for name, p in rnn.named_parameters():
            if name.startswith("weight_hh"):
                p.normal_(0, (2 / sizes.hidden) ** 0.5)

    def step() -> None:
        rnn.zero_grad()
        rnn(x)[1].sum().backward()

    return step


class Unavailable(Exception):
    """A rival that cannot be set up here."""


def scan_passes(case: Case) -> Callable[[], None]:
    """The same by a scan that torch compiles; one direction of one layer."""
    if case != Case(case.setting):
        raise Unavailable("the scan is written for one direction of one layer, time first")
    try:
        from torch._higher_order_ops.scan import scan
    except ImportError as error:
        raise Unavailable(f"torch {torch.__version__} has no scan") from error
    sizes, x = SETTINGS[case.setting], data_of(case)
    torch.manual_seed(0)
    w_in, w_rec = (
        torch.rand(sizes.hidden, sizes.inputs) - 0.5,
        torch.empty(sizes.hidden, sizes.hidden),
    )
    w_rec.normal_(0, (2 / sizes.hidden) ** 0.5)
    weights = [w.requires_grad_() for w in (w_in, w_rec, torch.zeros(sizes.hidden))]

    def forward(x: Tensor, w_in: Tensor, w_rec: Tensor, bias: Tensor) -> Tensor:
        def turn(h: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.relu(u + h @ w_rec.t())
            return h, h.clone()

        last, _ = scan(turn, torch.zeros(x.shape[1], len(bias)), x @ w_in.t() + bias, dim=0)
        return last

    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True)

    def step() -> None:
        for w in weights:
            w.grad = None
        compiled(x, *weights).sum().backward()

    try:
        step()
    except Exception as error:  # whatever the compiler says
        raise Unavailable(f"torch.compile of a scan: {str(error).splitlines()[0][:150]}") from error
    return step


@functools.cache
def onednn_program() -> Path:
    """The compiled program; oneDNN is installed for it where it is not there yet."""
    program = HOME / "onednn_rnn"
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise Unavailable("no C++ compiler")
    if not (HOME / "lib").exists():
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--prefix",
            str(HOME),
            *PACKAGES,
        ]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode or not (HOME / "lib").exists():
            raise Unavailable(f"pip could not install {' and '.join(PACKAGES)}")
    if not program.exists() or program.stat().st_mtime < (HERE / "onednn_rnn.cpp").stat().st_mtime:
        lib = HOME / "lib"
        command = [
            compiler,
            "-O2",
            "-std=c++17",
            str(HERE / "onednn_rnn.cpp"),
            f"-I{HOME / 'include'}",
            f"-L{lib}",
        ]
        done = subprocess.run(
            [*command, "-ldnnl", f"-Wl,-rpath,{lib}", "-o", str(program)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"the program does not compile: {done.stderr.splitlines()[0][:150]}")
    return program


def onednn_seconds(case: Case, seconds: float) -> float:
    if case.packed:
        raise Unavailable("oneDNN's RNN has no packed sequences")
    if case.batch_first:
        raise Unavailable("oneDNN's RNN wants time first")
    sizes = SETTINGS[case.setting]
    numbers = (
        sizes.hidden,
        sizes.steps,
        sizes.batch,
        sizes.inputs,
        case.layers,
        case.directions,
        seconds,
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(onednn_program()), *map(str, numbers)], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise Unavailable(f"oneDNN: {(done.stderr or 'failed').splitlines()[-1][:150]}")
    return float(done.stdout)


def measured(
    name: str, seconds: float, rivals: dict[str, bool], reasons: dict[str, str]
) -> dict[str, float]:
    """Seconds of every method that there is."""
    case = CASES[name]
    functions: dict[str, Callable[[], object]] = {
        "torch": passes(case, nn.RNN),
        "fused": passes(case, pathsgd.nn.RNN),
    }
    try:
        if rivals["scan"]:
            functions["scan"] = scan_passes(case)
    except Unavailable as why:
        reasons[f"{name}, scan"] = str(why)
    taken = interleaved(functions, seconds)
    try:
        if rivals["onednn"]:
            taken["onednn"] = onednn_seconds(case, seconds / 3)
    except Unavailable as why:
        reasons[f"{name}, onednn"] = str(why)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--no-onednn", dest="onednn", action="store_false")
    parser.add_argument("--no-scan", dest="scan", action="store_false")
    parser.add_argument("--json", type=Path, help="directory for the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows, reasons, columns = [], {}, ("fused", "onednn", "scan")
    print(f"{'':12}{'torch ms':>10}" + "".join(f"{c:>10}" for c in columns))
    for name in options.cases:
        taken = measured(name, options.seconds, vars(options), reasons)
        ratios = {key: value / taken["torch"] for key, value in taken.items() if key != "torch"}
        rows.append({"case": name, "torch_seconds": taken["torch"], "ratios": ratios})
        cells = "".join(f"{ratios[c]:10.3f}" if c in ratios else f"{'':10}" for c in columns)
        print(f"{name:12}{1e3 * taken['torch']:10.2f}{cells}", flush=True)
    for what, why in reasons.items():
        print(f"{what}: {why}")
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
        record = {**machine(), "threads": 1, "rows": rows, "missing": reasons}
        (options.json / "layers.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

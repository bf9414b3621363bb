"""kappa(terms="both") of hand-written loops beside that of the torch.nn.RNN that computes the same.

    python benchmarks/loops.py [--units 400] [--steps 40] [--seconds 5] [--json FILE] [--page]

One-hot input symbols; an output layer reads the last state; float64, one thread. `ratio` is the
loop's time over the layer's; `differs` the largest relative difference of any kappa between the
two. --page writes the record's table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import HERE, into_page
from settings import interleaved, machine
from torch import Tensor, nn
from torch.nn.functional import one_hot

import pathsgd

RECORD, BEGIN = HERE / "records" / "loops.json", "<!-- benchmark loops -->\n"
SYMBOLS, BATCH = 50, 4


class Layers(nn.Module):
    """What the loops are: one-hot symbols -> nn.RNN -> linear."""

    def __init__(self, units: int, layers: int = 1) -> None:
        super().__init__()
        self.rnn = nn.RNN(SYMBOLS, units, layers, nonlinearity="relu")
        self.out = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(one_hot(x, SYMBOLS).to(self.out.weight))[0][-1])


class Loop(nn.Module):
    """h <- relu(U x + W h), one or two layers of it, turn by turn."""

    def __init__(self, units: int, layers: int = 1) -> None:
        super().__init__()
        sizes = [SYMBOLS, units][:layers]
        self.into = nn.ModuleList(nn.Linear(size, units) for size in sizes)
        self.rec = nn.ModuleList(nn.Linear(units, units) for _ in sizes)
        self.out = nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.out.weight
        h = [weight.new_zeros(x.shape[1], weight.shape[1]) for _ in self.rec]
        for symbols in x:
            below = one_hot(symbols, SYMBOLS).to(weight)
            for k, (into, rec) in enumerate(zip(self.into, self.rec)):
                h[k] = below = torch.relu(into(below) + rec(h[k]))
        return self.out(h[-1])


class Cells(nn.Module):
    """The same by torch.nn.RNNCell."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.cell, self.out = nn.RNNCell(SYMBOLS, units, nonlinearity="relu"), nn.Linear(units, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = None
        for symbols in x:
            h = self.cell(one_hot(symbols, SYMBOLS).to(self.out.weight), h)
        return self.out(h)


LOOPS: dict[str, tuple[str, Callable[[int], nn.Module], int]] = {
    "loop": ("hand-written loop", Loop, 1),
    "cells": ("RNNCell", Cells, 1),
    "two": ("two layers, hand-written", lambda units: Loop(units, 2), 2),
}


def pair(name: str, units: int) -> tuple[nn.Module, Layers]:
    """A loop, and the layer with its weights, both in float64."""
    torch.manual_seed(0)
    _, make, layers = LOOPS[name]
    loop, layer = make(units).double(), Layers(units, layers).double()
    with torch.no_grad():
        for mine, its in zip(in_order(loop), in_order(layer)):
            mine.copy_(its)
    return loop, layer


def in_order(model: nn.Module) -> Iterator[Tensor]:
    """Weights of input, recurrent weights and both biases, layer by layer; the output's last."""
    if isinstance(model, Loop):
        for into, rec in zip(model.into, model.rec):
            yield from (into.weight, rec.weight, into.bias, rec.bias)
        yield from model.out.parameters()
    else:
        yield from model.parameters()


def difference(loop: nn.Module, layer: Layers, x: Tensor) -> float:
    """The largest relative difference of an entry of kappa."""
    names = [{id(p): name for name, p in model.named_parameters()} for model in (loop, layer)]
    mine, its = (pathsgd.kappa(model, x, terms="both", relative=True) for model in (loop, layer))
    pairs = [
        (mine[names[0][id(a)]], its[names[1][id(b)]])
        for a, b in zip(in_order(loop), in_order(layer))
    ]
    return max(float(((a - b).abs() / b.clamp(min=1e-300)).max()) for a, b in pairs)


def measured(name: str, units: int, steps: int, seconds: float) -> dict[str, float]:
    loop, layer = pair(name, units)
    x = torch.randint(SYMBOLS, (steps, BATCH))
    functions = {"loop": partial(pathsgd.kappa, loop, x, terms="both")}
    functions["layer"] = partial(pathsgd.kappa, layer, x, terms="both")
    taken = interleaved(functions, seconds)
    ratio = taken["loop"] / taken["layer"]
    return {"layer_ms": 1e3 * taken["layer"], "ratio": ratio, "differs": difference(loop, layer, x)}


def table(record: dict[str, Any]) -> str:
    """The record as the page has it."""
    sizes = f"{record['units']} units, T = {record['steps']}"
    lines = [f"| {sizes} | nn.RNN, ms | loop over it | differs |", "| --- | ---: | ---: | ---: |"]
    for name, r in record["loops"].items():
        lines.append(
            f"| {LOOPS[name][0]} | {r['layer_ms']:.1f} | {r['ratio']:.2f} | {r['differs']:.1g} |"
        )
    return "\n" + "\n".join(lines) + "\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path, default=RECORD)
    parser.add_argument(
        "--page", action="store_true", help="only put the record's table into the page"
    )
    options = parser.parse_args()
    if options.page:
        into_page(BEGIN, table(json.loads(RECORD.read_text())))
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = {}
    for name in LOOPS:
        found[name] = measured(name, options.units, options.steps, options.seconds)
        print(name, found[name], flush=True)
    record = {
        "machine": machine(),
        "threads": 1,
        "units": options.units,
        "steps": options.steps,
        "loops": found,
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.json == RECORD:
        into_page(BEGIN, table(record))


if __name__ == "__main__":
    main()

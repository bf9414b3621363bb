"""The demonstration: one ReLU net, one task, four optimisers, two scalings of one start.

The adding problem at T = 100 with 100 units.  Each optimiser trains the net twice: from the start
as drawn, and from the same function with its units rescaled by random powers of two between 1/1000
and 1000.  A method that depends on how the function is written down learns differently from the
second start; a method in path geometry does not.  Powers of two, because they round nothing: other
factors change the last bits of the weights, of which long training makes much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathsgd_lab.report.model import Entry, FigureData, Section, Series, TableData
from pathsgd_lab.report.robustness import verdict
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, default_spec, replace_settings
from pathsgd_lab.sweep.results import Filed

BADLY_SCALED = 1000.0
TITLE = "One ReLU net, four optimisers, two ways to write down the same start"
INTRODUCTION = (
    "The adding problem: read a long sequence of numbers, add the two that are marked. A plain "
    "ReLU net with 100 units learns it from a start as drawn (balanced) and from the same function "
    "with every unit rescaled by a random power of two between 1/1000 and 1000 (badly scaled). "
    "Always answering 1 has a mean squared error of 0.167; below 0.001 the task counts as solved."
)
WHAT_TO_SEE = (
    "Compare the two errors of a row: where they agree, it does not matter to the method how the "
    "function is written down. Powers of two round nothing, so that the path optimisers do the "
    "same to the last digit. The seconds (s) are those of one core until the task counted as "
    "solved, or until the end. Each optimiser has its own defaults: PathAdam's beta2 is 0.99, "
    "Adam's 0.999, and the path optimisers bound the growth rate of the recurrence."
)
METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9},
    "adam": {"lr": 1e-3},
    "path-sgd-absolute": {"lr": 0.01, "momentum": 0.9, "refresh_every": 10},
    "path-adam": {"lr": 1e-3, "refresh_every": 10},
}
LABELS = {
    "sgd": "SGD, momentum", "adam": "Adam", "path-sgd-absolute": "PathSGD, momentum",
    "path-adam": "PathAdam",
}  # fmt: skip
"""The path optimisers are the library's own, at their defaults but for what METHODS says."""


def demo_specs(length: int = 100, steps: int = 5000, seed: int = 0) -> list[RunSpec]:
    """Every method from both starts."""
    common = {
        "length": length, "steps": steps, "seed": seed, "others_range": 0.3, "mean_bias": True,
        "decay": "linear",
        "eval_every": max(1, steps // 25), "valid_size": 1000, "stop_when_solved": True,
    }  # fmt: skip
    return [
        replace_settings(
            default_spec("adding", "rnn_path", name),
            **common,
            **settings,
            unbalanced=scale,
            by_powers_of_two=scale > 1.0,
        )
        for name, settings in METHODS.items()
        for scale in (1.0, BADLY_SCALED)
    ]


def demo_section(filed: Sequence[Filed]) -> Section:
    """Table and curves."""
    return Section(
        "demo",
        "Result",
        "Solid lines start balanced, dashed ones badly scaled. Where the two lines of a method lie "
        "on each other, it does not care how the function is written down.",
        tables=(demo_table([f.record for f in filed]),),
        figures=(demo_figure([f.record for f in filed]),),
        sources=sources(filed),
    )


def demo_table(records: Sequence[Record]) -> TableData:
    """A row per method, a pair of cells per start."""
    rows = []
    for name in METHODS:
        mine = {r.spec.unbalanced: r for r in records if r.spec.optimiser.name == name}
        cells: list[Entry] = []
        for scale in (1.0, BADLY_SCALED):
            cells += _result(mine[scale]) if scale in mine else [Entry("—"), Entry("—")]
        rows.append((Entry(f"{LABELS[name]}, rate {METHODS[name]['lr']:g}"), *cells))
    columns = ("optimiser", "balanced: test MSE", "s", "badly scaled: test MSE", "s ")
    return TableData("Test error on 10,000 fresh sequences", columns, tuple(rows), WHAT_TO_SEE)


def _result(record: Record) -> list[Entry]:
    keys = (record.hash,)
    found = verdict(record)
    error = "diverged" if found == "diverged" else f"{record.test:.2g} ({found})"
    return [Entry(error, keys), Entry(f"{record.cpu_seconds:.0f}", keys)]


def demo_figure(records: Sequence[Record]) -> FigureData:
    """Validation error over time."""
    series = []
    for record in records:
        colour = list(METHODS).index(record.spec.optimiser.name)
        scaled = record.spec.unbalanced > 1.0
        name = f"{LABELS[record.spec.optimiser.name]}, {'badly scaled' if scaled else 'balanced'}"
        steps = tuple(float(point.step) for point in record.curve)
        series.append(
            Series(name, steps, tuple(p.metrics["valid"] for p in record.curve), scaled, colour)
        )
    return FigureData("Validation error", "steps", "mean squared error", tuple(series), log_y=True)

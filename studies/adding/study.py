"""Table 2 and Figure 4: the adding problem at T = 100, 400 and 750, and beyond.

Three parts, whose runs are told apart by their settings:

- ``table``: every system of the table with its own initial values and optimiser, the same seconds
of one core for all,
  the paper's grid of rates on one seed, then the best rate on all seeds;
- ``map``: T = 100, the same plain net by every optimiser, rates times seeds, balanced and badly
scaled, at full length
  from the start and with short sequences first;
- ``long``: short sequences first, T up to 10,000, one set of hyperparameters for every T.

Cells come seed by seed, so that a run that is cut short has fewer seeds of everything, not
everything of some.

The paper prints 100 MSE: 0 is solved, 16.7 is chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathsgd_lab.report.model import Entry, FigureData, MapData, Section, Series, TableData
from pathsgd_lab.report.robustness import robustness_map, verdict
from pathsgd_lab.report.select import groups, spread
from pathsgd_lab.report.tables import ComparisonRow, Style, comparison, curves, sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.pages import titled
from pathsgd_lab.studies.study import (
    LITERAL,
    Scale,
    Study,
    at_best_rate,
    cells,
    over,
    run,
    seed_by_seed,
    uses,
)
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "Table 2, adding; Figure 4"
RATES = (1e-2, 1e-3, 1e-4)
"""The paper's grid."""

# Label, system, optimiser, settings, and 100 MSE in the paper at T = 100, 400 and 750 (the paper's
# own run first, then
# the figure it cites from the system's authors).
SYSTEMS: tuple[tuple[str, str, str, dict[str, Any], tuple[float | str, ...]], ...] = (
    ("IRNN, SGD", "irnn", "sgd", {}, (0.0, 0.0, 16.7)),
    ("IRNN, Adam", "irnn", "adam", {}, ("—", "—", "—")),
    ("np-RNN", "np_rnn", "rmsprop", {}, (0.0, 2.0, "> 2")),
    ("uRNN", "urnn", "rmsprop", {"hidden": 128}, (0.0, 3.0, 16.7)),
    ("LSTM", "lstm", "adam", {}, (0.0, 2.0, 16.7)),
    ("RNN-Path, Path-SGD as printed", "rnn_path", "path-sgd", LITERAL, (0.0, 0.0, 0.0)),
    ("RNN-Path, PathAdam", "rnn_path", "path-adam-relative", {}, (0.0, 0.0, 0.0)),
)
LENGTHS = (100, 400, 750)
START: dict[str, Any] = {"others_range": 0.3, "mean_bias": True}
"""A start that helps every method: larger input and output weights, output bias at the mean of the
targets."""
CURRICULUM: dict[str, Any] = {"start_length": 50, "growth": 1.2, "promote_below": 1e-2}
LONG: dict[str, Any] = {
    **CURRICULUM,
    "decay": "linear",
    "decay_steps": 1500,
    "warmup": 100,
    "eval_every": 100,
}
LONG_RATES = {"path-adam-relative": 3e-3, "adam": 1e-3}
"""At the first length; the rate falls with the length."""

# "lengths": seconds for each T of the table; "long": seconds and number of seeds for each T.
SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {
        "seeds": range(10), "lengths": dict.fromkeys(LENGTHS, 3600.0),
        "long": {1000: (3600.0, 10), 2000: (3600.0, 10), 5000: (7200.0, 10),
                 10_000: (14_400.0, 10)},
        "map_steps": 5000, "map_rates": (1e-2, 3e-3, 1e-3, 3e-4, 1e-4), "common": {},
    },
    "laptop": {
        "seeds": range(5), "lengths": {100: 30.0, 400: 60.0, 750: 120.0},
        "long": {100: (10.0, 5), 400: (60.0, 5), 750: (120.0, 5), 1000: (180.0, 5),
                 2000: (600.0, 2), 5000: (1800.0, 1),
                 10_000: (3600.0, 1)},
        "map_steps": 2500, "map_rates": (1e-2, 3e-3, 1e-3, 3e-4), "common": {},
    },
    "smoke": {
        "seeds": range(2), "lengths": {8: 0.05}, "long": {30: (0.1, 2)}, "map_steps": 10,
        "map_rates": (1e-2, 1e-3),
        "common": {"hidden": 4, "valid_size": 20, "test_size": 20},
    },
}  # fmt: skip


def _until_solved(length: int, seconds: float, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "length": length,
        "seconds": seconds,
        "stop_when_solved": True,
        "eval_every": 200,
        **common,
    }


def table_grid(scale: Scale) -> list[RunSpec]:
    """Every system and length at every rate, on one seed."""
    size, specs = SIZES[scale], []
    for length, seconds in size["lengths"].items():
        for _, system, optimiser, settings, _ in SYSTEMS:
            merged = {**_until_solved(length, seconds, {}), **settings, **size["common"]}
            specs += over(run("adding", system, optimiser, **merged), lr=RATES)
    return specs


def map_cells(scale: Scale) -> list[RunSpec]:
    """One net, every optimiser, balanced and badly scaled, direct and with the curriculum."""
    size, specs = SIZES[scale], []
    length = min(size["lengths"])
    short_first = {**CURRICULUM, "start_length": min(CURRICULUM["start_length"], length // 2)}
    for curriculum in ({}, short_first):
        for optimiser in ("sgd", "adam", "path-sgd", "path-adam-relative", "path-adam-paper"):
            old_metric = {"refresh_every": 10} if optimiser.startswith("path") else {}
            base = run(
                "adding", "rnn_path", optimiser, length=length, steps=size["map_steps"],
                decay="linear", eval_every=500, **START, **curriculum, **size["common"],
                **old_metric,
            )  # fmt: skip
            specs += over(base, unbalanced=(1.0, 100.0), lr=size["map_rates"], seed=size["seeds"])
    return sorted(specs, key=_seed)


def long_cells(scale: Scale) -> list[RunSpec]:
    """Short sequences first, one set of hyperparameters for every length."""
    size, specs = SIZES[scale], []
    for length, (seconds, seeds) in size["long"].items():
        settings = {**_until_solved(length, seconds, size["common"]), **START, **LONG}
        if scale == "smoke":
            settings.update(start_length=8, decay_steps=20)
        for optimiser, rate in LONG_RATES.items():
            specs += over(
                run("adding", "rnn_path", optimiser, **settings, lr=rate), seed=range(seeds)
            )
    return sorted(specs, key=_seed)


def _seed(spec: RunSpec) -> int:
    return spec.seed


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Everything that needs no earlier record."""
    return cells([*long_cells(scale), *map_cells(scale), *table_grid(scale)], PAPER_REF)


def second_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The table's systems at their best rates, on all seeds."""
    best = at_best_rate(table_grid(scale), records)
    return cells(seed_by_seed(best, SIZES[scale]["seeds"]), PAPER_REF)


def part(spec: RunSpec) -> str:
    """Which part of the experiment a run belongs to."""
    if spec.budget.steps:
        return "map"
    return "long" if spec.curriculum.first_length else "table"


def section(filed: Sequence[Filed]) -> Section:
    """Tables, curves and maps of the parts for which there are records."""
    by_part = {
        name: [f for f in filed if part(f.record.spec) == name] for name in ("table", "map", "long")
    }
    lengths = sorted({f.record.spec.task.length for f in by_part["table"]})
    tables = [paper_table(length, by_part["table"]) for length in lengths] or [
        paper_table(n, []) for n in LENGTHS
    ]
    tables.append(long_table(by_part["long"]))
    figures = [paper_figure(length, by_part["table"]) for length in lengths]
    figures.append(long_figure(by_part["long"]))
    maps = []
    for title, curriculum in (
        ("at full length from the start", False),
        ("short sequences first", True),
    ):
        chosen = [
            f.record
            for f in by_part["map"]
            if bool(f.record.spec.curriculum.first_length) is curriculum
        ]
        if chosen:
            maps.append(
                MapData(
                    f"T = 100, {title}: the same net by every optimiser", robustness_map(chosen)
                )
            )
    return Section(
        "adding",
        "The adding problem",
        "100 units unless the system's paper says otherwise; 100 MSE on 10,000 fresh sequences "
        "(chance 16.7, solved below 0.1). Every system has the same seconds of one core and its "
        "own best rate.",
        tables=tuple(tables),
        figures=tuple(figures),
        maps=tuple(maps),
        sources=sources(filed),
    )


def paper_rows(length: int) -> list[ComparisonRow]:
    """The paper's rows at one length; lengths it does not have get no figure."""
    rows = []
    for label, system, optimiser, _, printed in SYSTEMS:
        paper = printed[LENGTHS.index(length)] if length in LENGTHS else None
        rows.append(ComparisonRow(label, paper, uses(system, optimiser)))
    return rows


def of_length(length: int, filed: Sequence[Filed]) -> list[Filed]:
    """The runs on sequences of this length."""
    return [f for f in filed if f.record.spec.task.length == length]


def paper_table(length: int, filed: Sequence[Filed]) -> TableData:
    """Table 2 at one length."""
    title = f"T = {length}, full length from the start: 100 MSE"
    return comparison(title, paper_rows(length), of_length(length, filed), Style(2, 100.0))


def paper_figure(length: int, filed: Sequence[Filed]) -> FigureData:
    """Figure 4 at one length: the median run of each system."""
    return curves(
        f"T = {length}",
        paper_rows(length),
        of_length(length, filed),
        y_label="validation MSE",
        log_y=True,
    )


def long_table(filed: Sequence[Filed]) -> TableData:
    """How many seeds reach MSE < 1e-3 within the time, and how soon."""
    lines = []
    found = groups([f.record for f in filed]).values()
    for group in sorted(
        found, key=lambda group: (group[0].spec.optimiser.title, group[0].spec.task.length)
    ):
        spec, keys = group[0].spec, tuple(record.hash for record in group)
        solved = [record for record in group if verdict(record) == "solved"]
        times = spread([record.cpu_seconds for record in solved])
        lines.append(
            (
                Entry(f"{spec.optimiser.title}, T = {spec.task.length}"),
                Entry(f"{spec.budget.seconds:g}"),
                Entry(f"{len(solved)} of {len(group)}", keys),
                Entry("—" if not solved else times.text(0), keys),
                Entry(
                    spread([100.0 * record.test for record in group if record.metrics]).text(3),
                    keys,
                ),
            )
        )
    columns = ("method", "seconds allowed", "solved", "seconds to solve", "100 MSE")
    title = "Short sequences first: one set of hyperparameters for every length"
    return TableData(title, columns, tuple(lines))


def long_figure(filed: Sequence[Filed]) -> FigureData:
    """Seconds to solve against length, for the median of the seeds that solve."""
    found: dict[str, dict[int, float]] = {}
    for group in groups([f.record for f in filed]).values():
        times = sorted(record.cpu_seconds for record in group if verdict(record) == "solved")
        if times:
            spec = group[0].spec
            found.setdefault(spec.optimiser.title, {})[spec.task.length] = times[len(times) // 2]
    series = tuple(
        Series(name, tuple(map(float, sorted(times))), tuple(times[n] for n in sorted(times)))
        for name, times in found.items()
    )
    return FigureData(
        "Short sequences first: time to solve", "T", "seconds of one core", series, True, True
    )


def timed_table(filed: Sequence[Filed]) -> str:
    """The runs of the table's systems, length by length."""
    chosen = [f for f in filed if part(f.record.spec) == "table"]
    lengths = sorted({f.record.spec.task.length for f in chosen})
    return titled([paper_table(length, chosen) for length in lengths])


STUDY = Study(
    name="adding",
    title="The adding problem: the table, the curves, robustness, and lengths beyond the paper's",
    paper_ref=PAPER_REF,
    duration={
        "paper": "some days on two cores",
        "laptop": "five hours on two cores",
        "smoke": "a minute",
    },
    stages=(first_stage, second_stage),
    section=section,
    tables={"runs-adding-table": timed_table},
)

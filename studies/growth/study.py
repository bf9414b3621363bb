"""The bound on growth rates at one setting, beside other ways to prevent explosions.

Beyond the paper: the adding problem with 100 units, identity start, other weights from U[-0.3,
0.3], output bias at the mean of the targets.  ``curves`` follows growth rate and error step by
step, ``rates`` goes through learning rates from a balanced and a badly scaled start, ``lengths``
trains at full length from the first step, by PathAdam and by Adam with the same bound, ``rivals``
sets the bound beside none, beside the fixed bound on steps and under other optimisers,
``start`` is the paper's own start.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from studies.growth import caps  # noqa: F401 - it adds an optimiser

from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import Entry, FigureData, Section, Series, TableData
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.record import Point, Record
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.studies.study import Scale, Study, cells, over, rate_of, run, seed_by_seed
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "beyond the paper: growth rates"
START: dict[str, Any] = {"others_range": 0.3, "mean_bias": True, "decay": "linear"}
PAPER_START: dict[str, Any] = {"others_range": 0.01, "decay": "linear"}
LIMIT = 3.0
BADLY_SCALED = 100.0
BOUND: dict[str, Any] = {"growth_limit": LIMIT, "refresh_every": 10}
NONE: dict[str, Any] = {"growth_limit": 0.0, "refresh_every": 10}
STEPS: dict[str, Any] = {**NONE, "step_growth": 0.3}
"""A fixed bound on steps; its code is gone, its records are left."""
METHOD = "path-adam"
CALM_AFTER = 100
"""Step from which on an evaluation counts as calm or not."""


@dataclass(frozen=True)
class Rival:
    """What stands beside the bound: a label, an optimiser, its settings, and a system."""

    label: str
    optimiser: str
    settings: dict[str, Any]
    system: str = "rnn_path"


ADAM_BOUND: dict[str, Any] = {"growth_limit": LIMIT}
RIVALS = (
    Rival("PathAdam, bound on growth rates", METHOD, BOUND),
    Rival("PathAdam, bound on steps 0.3", METHOD, STEPS),
    Rival("PathAdam, no bound", METHOD, NONE),
    Rival("PathAdam, relative metric, bound on growth rates", "path-adam-relative", BOUND),
    Rival("Adam, clip 1, bound on growth rates", "adam", ADAM_BOUND),
    Rival("Adam, clip 1", "adam", {}),
    Rival("Adam, clip 1, spectral radius at most exp(3/T)", "adam-capped", {"cap": "radius"}),
    Rival(
        "Adam, clip 1, singular values at most exp(3/T)", "adam-capped", {"cap": "singular-values"}
    ),
    Rival("Adam, clip 1, entries within 1", "adam-capped", {"cap": "entries", "cap_limit": 1.0}),
    Rival("Adam, clip 1, orthogonal parametrisation", "adam", {}, "orthogonal_rnn"),
    Rival("AdamW, clip 1, bound on growth rates", "adamw", ADAM_BOUND),
    Rival("AdamW, clip 1", "adamw", {}),
    Rival("RMSprop, clip 1, bound on growth rates", "rmsprop", ADAM_BOUND),
    Rival("RMSprop, clip 1", "rmsprop", {}),
    Rival("SGD at 1e-2, clip 1, bound on growth rates", "sgd", {**ADAM_BOUND, "lr": 1e-2}),
    Rival("SGD at 1e-2, clip 1", "sgd", {"lr": 1e-2}),
)
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"length": 100, "steps": 3000, "eval_every": 25, "seeds": 5, "valid_size": 2000,
              "rates": RATES, "lengths": ((400, 15_000), (750, 20_000), (1000, 30_000),
                                          (2000, 40_000), (5000, 40_000))},
    "laptop": {"length": 100, "steps": 3000, "eval_every": 50, "seeds": 5, "valid_size": 1000,
               "rates": RATES, "lengths": ((400, 15_000), (750, 20_000), (1000, 30_000),
                                           (2000, 40_000))},
    "smoke": {"length": 6, "steps": 4, "eval_every": 2, "seeds": 1, "valid_size": 5, "test_size": 5,
              "hidden": 3, "rates": (1e-3, 1e-2), "lengths": ((8, 4),)},
}  # fmt: skip
LENGTH_RATES = (1e-3, 3e-3)
"""The rates at full length."""
LONG, LARGEST = 2000, 3e38
"""From this length on only a loss that is not a number ends a run. One sequence of a batch may
reach a direction that grows a quadrillion times; its gradient is clipped as any other is, and the
run learns on."""
LIMITS = (2.0, 5.0, 8.0)
"""Other limits, at a high rate."""
HIGH = 1e-2


def _runs(scale: Scale) -> list[RunSpec]:
    """Every run of one seed, the cheap ones first."""
    size = {k: v for k, v in SIZES[scale].items() if k not in ("seeds", "rates", "lengths")}
    bounded = run("adding", "rnn_path", METHOD, **size, **START, **BOUND, lr=1e-3)
    common = {**size, **START, "lr": 1e-3}
    specs = [
        run("adding", r.system, r.optimiser, **{**common, "geometry": True, **r.settings})
        for r in RIVALS
        if r.settings is not STEPS
    ]
    specs += over(bounded, lr=SIZES[scale]["rates"], unbalanced=(1.0, BADLY_SCALED))
    specs += over(
        run("adding", "rnn_path", "path-adam-relative", **size, **START, **BOUND),
        lr=SIZES[scale]["rates"],
    )
    specs += over(bounded, lr=(HIGH,), growth_limit=LIMITS)
    long = {**size, "steps": 2 * size["steps"]}
    specs.append(run("adding", "rnn_path", METHOD, **long, **PAPER_START, **BOUND, lr=1e-3))
    for length, steps in SIZES[scale]["lengths"]:
        full = {
            "length": length,
            "steps": steps,
            "eval_every": max(1, steps // 100),
            "stop_when_solved": True,
        }
        full |= {"explode": LARGEST} if length >= LONG else {}
        specs += over(
            run("adding", "rnn_path", METHOD, **{**size, **full}, **START, **BOUND), lr=LENGTH_RATES
        )
        specs.append(
            run("adding", "rnn_path", "adam", **{**size, **full}, **START, **ADAM_BOUND, lr=1e-3)
        )
    return specs


def stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """All of it, seed by seed."""
    return cells(seed_by_seed(_runs(scale), range(SIZES[scale]["seeds"])), PAPER_REF)


# ---- tables --------------------------------------------------------------------------------------


def largest_after(record: Record, step: int = CALM_AFTER) -> float:
    """The largest validation error of a run from a step on; infinite for one that diverged."""
    errors = [point.metrics["valid"] for point in record.curve if point.step >= step]
    return math.inf if record.outcome == "diverged" else max(errors, default=math.nan)


def _entries(records: Sequence[Record]) -> tuple[Entry, ...]:
    keys = tuple(r.hash for r in records)
    solved = sum(r.test < 1e-3 for r in records)
    ends = ", ".join("diverged" if r.outcome == "diverged" else f"{r.test:.1e}" for r in records)
    calm = ", ".join(f"{largest_after(r):.2g}" for r in records)
    seconds = ", ".join(f"{r.cpu_seconds:.0f}" for r in records)
    texts = (f"{solved} of {len(records)}", ends, calm, seconds) if records else ("—",) * 4
    return tuple(Entry(text, keys) for text in texts)


COLUMNS = (
    "solved",
    "test MSE",
    f"largest validation MSE from step {CALM_AFTER} on",
    "seconds of one processor",
)


Wanted = Callable[[RunSpec], bool]


def _table(
    title: str, first: str, records: Sequence[Record], rows: Sequence[tuple[str, Wanted]]
) -> TableData:
    made = []
    for label, wanted in rows:
        mine = sorted((r for r in records if wanted(r.spec)), key=lambda r: r.spec.seed)
        made.append((Entry(label), *_entries(mine)))
    return TableData(title, (first, *COLUMNS), tuple(made))


def _has(optimiser: str, **wanted: Any) -> Wanted:
    """Whether a run is by this optimiser and has these settings."""

    def has(spec: RunSpec) -> bool:
        known = dict(settings(spec))
        return spec.optimiser.name == optimiser and all(
            known.get(name) == value for name, value in wanted.items()
        )

    return has


def _is(rival: Rival) -> Wanted:
    wanted = {"growth_limit": 0.0, "step_growth": None, **rival.settings, "geometry": True}
    has = _has(rival.optimiser, **wanted)
    return lambda spec: spec.system.name == rival.system and has(spec)


def rivals_table(records: Sequence[Record]) -> TableData:
    """What keeps a net calm, at one rate."""
    rows = [(rival.label, _is(rival)) for rival in RIVALS]
    return _table("The same net at 1e-3, with one bound or another", "", records, rows)


def _shortest(records: Sequence[Record]) -> int:
    return min((r.spec.task.length for r in records), default=0)


def rates_table(records: Sequence[Record]) -> TableData:
    """The bound at every rate, from both starts, and in the relative metric."""
    base = {"geometry": False, **BOUND, "others_range": 0.3, "length": _shortest(records)}
    rows = []
    for method, metric in ((METHOD, ""), ("path-adam-relative", ", relative metric")):
        mine = [r.spec for r in records if _has(method, **base)(r.spec)]
        for scale, lr in sorted({(spec.unbalanced, rate_of(spec)) for spec in mine}):
            start = "badly scaled" if scale > 1 else "balanced"
            rows.append((f"{lr:g}, {start}{metric}", _has(method, **base, lr=lr, unbalanced=scale)))
    return _table("PathAdam with the bound at one setting: learning rates", "rate", records, rows)


def limits_table(records: Sequence[Record]) -> TableData:
    """Other limits, at a high rate."""
    base = {
        "geometry": False,
        "others_range": 0.3,
        "length": _shortest(records),
        "lr": HIGH,
    }
    rows = [
        (f"{c:g}", _has(METHOD, **base, growth_limit=c, unbalanced=1.0))
        for c in sorted((LIMIT, *LIMITS))
    ]
    return _table(f"Other limits, at a rate of {HIGH:g}", "limit", records, rows)


AT_LENGTH: dict[str, Any] = {**BOUND, "others_range": 0.3, "unbalanced": 1.0}


def at_full_length(length: int) -> Wanted:
    """Whether a run is PathAdam's at a length, at any rate."""
    return _has(METHOD, **AT_LENGTH, length=length)


def lengths_table(records: Sequence[Record], *, paper_start: bool = True) -> TableData:
    """The bound at every length, and at the shortest from the paper's start."""
    shortest, *found = sorted({r.spec.task.length for r in records}) or [0]
    longer = sorted({*found, *(length for length, _ in SIZES["laptop"]["lengths"])})
    rows = [
        (f"T = {length}, rate {lr:g}", _has(METHOD, **AT_LENGTH, length=length, lr=lr))
        for lr, length in itertools.product(LENGTH_RATES, longer)
    ]
    if paper_start:
        by_adam = [(length, _has("adam", **ADAM_BOUND, length=length)) for length in longer]
        rows += [(f"T = {length}, Adam, clip 1, with the bound", has) for length, has in by_adam]
        paper = _has(METHOD, **BOUND, length=shortest, others_range=0.01)
        rows.append((f"T = {shortest}, the paper's start", paper))
    return _table("The same setting at full length from the first step", "length", records, rows)


def lengths_run(filed: Sequence[Filed]) -> str:
    """The lengths that have been run."""
    table = lengths_table([f.record for f in filed], paper_start=False)
    rows = tuple(row for row in table.rows if any(entry.records for entry in row))
    return markdown(replace(table, rows=rows))


HERE = Path(__file__).parent


def looks_table() -> TableData:
    """What the optimiser knew of the growth rate, beside a thorough search.

    benchmarks/growth_looks.py made the file.
    """
    columns = (
        "step",
        "followed",
        "thorough",
        "spectral radius",
        "largest loss of a batch since the last line",
    )
    keys = ("step", "followed", "thorough", "radius", "largest_loss")
    lines = json.loads((HERE / "looks.json").read_text("utf-8"))["looks"]
    rows = tuple(tuple(Entry(f"{line[key]:g}") for key in keys) for line in lines)
    return TableData("What looks know", columns, rows)


def trials_table() -> TableData:
    """Trials by changed code, a row for each change; figures of the seeds side by side."""
    together: dict[str, list[dict[str, Any]]] = {}
    for trial in json.loads((HERE / "trials.json").read_text("utf-8"))["trials"]:
        together.setdefault(trial["change"], []).append(trial)
    rows = []
    for change, trials in together.items():
        seeds = ", ".join(str(t["seed"]) for t in trials)
        ends = ", ".join(
            f"{t['steps']:,}" if t["solved"] else f"not in {t['steps']:,}" for t in trials
        )
        figures = (
            ", ".join(f"{float(t[key]):.2g}" for t in trials)
            for key in ("largest_evaluation", "largest_batch", "batches_over_2")
        )
        rows.append(tuple(Entry(text) for text in (change, seeds, ends, *figures)))
    columns = (
        "change",
        "seeds",
        "solved at step",
        "largest evaluation",
        "largest loss of a batch",
        "batches above 2",
    )
    return TableData("Trials", columns, tuple(rows))


# ---- figures -------------------------------------------------------------------------------------

SHOWN = (
    "PathAdam, bound on growth rates",
    "PathAdam, no bound",
    "Adam, clip 1, bound on growth rates",
    "Adam, clip 1",
)


def _figure(
    title: str,
    y_label: str,
    records: Sequence[Record],
    y: Callable[[Point], float | None],
    *,
    log_y: bool,
) -> FigureData:
    series = []
    for rival in RIVALS:
        label = rival.label
        mine = [r for r in records if r.spec.seed == 0 and _is(rival)(r.spec)]
        if label in SHOWN and mine:
            points = [(float(p.step), value) for p in mine[0].curve if (value := y(p)) is not None]
            if points:
                xs, ys = zip(*points)
                series.append(
                    Series(
                        label,
                        xs,
                        ys,
                        dashed="bound on" not in label,
                        colour=0 if label.startswith("Adam") else 1,
                    )
                )
    return FigureData(title, "steps", y_label, tuple(series), log_y=log_y)


def _growth_rate(point: Point) -> float | None:
    return point.geometry.get("growth_rate")


def section(filed: Sequence[Filed]) -> Section:
    """Tables and curves."""
    records = [f.record for f in filed]
    return Section(
        "growth",
        "Calm at any length: a bound on growth rates",
        "The adding problem; always answering 1 has a mean squared error of 0.167, below 0.001 the "
        "task counts as solved. Several figures in a cell are seeds.",
        tables=tuple(
            made(records) for made in (rivals_table, rates_table, limits_table, lengths_table)
        ),
        figures=(
            _figure(
                "Growth rate of the recurrence",
                "growth rate",
                records,
                lambda p: p.geometry.get("growth_rate"),
                log_y=False,
            ),
            _figure(
                "Validation error",
                "mean squared error",
                records,
                lambda p: p.metrics["valid"],
                log_y=True,
            ),
        ),
        sources=sources(filed),
    )


STUDY = Study(
    name="growth",
    title="Calm at any length: a bound on growth rates",
    paper_ref=PAPER_REF,
    duration={
        "paper": "a day on two cores",
        "laptop": "half a day on two cores",
        "smoke": "seconds",
    },
    stages=(stage,),
    section=section,
    tables={
        "growth-lengths": lengths_run,
        "growth-looks": lambda filed: markdown(looks_table()),
        "growth-trials": lambda filed: markdown(trials_table()),
    },
)

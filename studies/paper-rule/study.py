"""The paper's own rule, p <- p - lr grad / kappa, on the adding problem from the paper's own start.

Three parts, told apart by their settings:

- ``control``: IRNN with SGD and a clipped gradient, as Le et al. (2015) train it, whom the paper
follows; and with the
  bound, rate and schedule of the rule, so that its steps are as long as the rule's;
- ``rule``: the reading that learns best, to the end: until solved, or a million steps;
- ``map``: every reading, bound and scale at rates over many decades, 20,000 steps at T = 100: which
learn, which stand
  still, which diverge.

The readings are those of `lab/src/pathsgd_lab/run/optimisers/readings.py`.  Cells of the map come
coarse first, so that a run that is cut short has something of everything.  Sums over the batch
instead of means need no cells: they are the means at B times the rate with a B-th of the bound (a
test).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import Entry, FigureData, Section, TableData
from pathsgd_lab.report.robustness import verdict
from pathsgd_lab.report.select import groups
from pathsgd_lab.report.tables import ComparisonRow, curves, sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.run.trainer import Trainer
from pathsgd_lab.studies.pages import titled
from pathsgd_lab.studies.study import Scale, Study, cells, over, rate_of, run, uses
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "Table 2, adding; Figure 4"
PAPER = {100: (0.0, 0.0), 400: (0.0, 0.0), 750: (16.7, 0.0)}
"""100 MSE in the paper, by T: its IRNN and its RNN-Path."""
LENGTHS = (100, 400, 750)
CONTROL: dict[str, Any] = {"lr": 1e-2, "clip": 1.0}
BEST: dict[str, Any] = {"initial_state": True, "lr": 1000.0, "refresh_every": 10}
"""The reading that learns best of those tried: the units at time 0 are input nodes, as the paper
has it, the scale is SGD's, every step is as long as the bound allows, and kappa serves for ten
steps. The rate falls to half of it in a million steps."""
LONG_PATHS = 400


def best_clip(length: int) -> float:
    """Step bounds of that reading: 0.03 at first, 0.003 where long paths make longer ones fail."""
    return 3e-6 if length >= LONG_PATHS else 3e-5


READINGS: tuple[dict[str, bool], ...] = tuple(
    {"initial_state": h0, "every_output": every, "biases": biases}
    for every, biases, h0 in itertools.product((False, True), (True, False), (False, True))
)
BOUNDS: tuple[dict[str, Any], ...] = (
    {"clip_on": "direction", "clip": 1.0},
    {"clip_on": "direction", "clip": 0.03},
    {"clip_on": "direction", "clip": 0.0},
    {"clip_on": "gradient", "clip": 1.0},
    {"clip_on": "dual", "clip": 1.0},
)
RATES = {
    "sgd": tuple(10.0**k for k in range(1, -5, -1)),
    "kappa": tuple(10.0**k for k in range(2, -11, -1)),
}
"""With the constant, around SGD's own; without, over twelve decades: the constant is 1e-6 at the
paper's start."""

SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"lengths": LENGTHS, "steps": 1_000_000, "seeds": 3, "map_steps": 20_000,
              "map_length": 100,
              "eval_every": 1000, "common": {}},
    "laptop": {"lengths": (100,), "steps": 1_000_000, "seeds": 3, "map_steps": 20_000,
               "map_length": 100,
               "eval_every": 1000, "common": {}},
    "smoke": {"lengths": (8,), "steps": 8, "seeds": 2, "map_steps": 4, "map_length": 8,
              "eval_every": 4,
              "common": {"hidden": 4, "valid_size": 20, "test_size": 20}},
}  # fmt: skip


def to_the_end(scale: Scale) -> list[RunSpec]:
    """The control and the best reading, until solved or out of steps, seed by seed."""
    size = SIZES[scale]
    ends = {
        "steps": size["steps"],
        "stop_when_solved": True,
        "eval_every": size["eval_every"],
        **size["common"],
    }
    specs = []
    for seed, length in itertools.product(range(size["seeds"]), size["lengths"]):
        both = {**ends, "length": length, "seed": seed}
        specs.append(run("adding", "irnn", "sgd", **both, **CONTROL))
        falling = {"decay": "linear", "decay_steps": 2 * size["steps"]}
        clip = best_clip(length)
        specs.append(
            run("adding", "rnn_path", "path-sgd-paper", **both, **BEST, **falling, clip=clip)
        )
        specs.append(run("adding", "irnn", "sgd", **both, **falling, lr=BEST["lr"], clip=clip))
    return specs


def map_cells(scale: Scale) -> list[RunSpec]:
    """Every reading, bound and scale; every second rate first."""
    size = SIZES[scale]
    base: dict[str, Any] = {
        "length": size["map_length"],
        "steps": size["map_steps"],
        **size["common"],
    }
    base["eval_every"] = size["eval_every"]
    specs: list[tuple[int, RunSpec]] = []
    for kind, rates in RATES.items():
        for bound, reading in itertools.product(BOUNDS, READINGS):
            one = run(
                "adding", "rnn_path", "path-sgd-paper", scale=kind, **base, **bound, **reading
            )
            specs += [(index % 2, spec) for index, spec in enumerate(over(one, lr=rates))]
    ordered = [spec for _, spec in sorted(specs, key=lambda pair: pair[0])]
    return ordered if scale != "smoke" else ordered[::40]


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Everything: nothing is chosen by records."""
    return cells([*to_the_end(scale), *map_cells(scale)], PAPER_REF)


def is_map(spec: RunSpec) -> bool:
    """Whether a run belongs to the map."""
    return spec.optimiser.name == "path-sgd-paper" and not spec.budget.stop_when_solved


def section(filed: Sequence[Filed]) -> Section:
    """The runs to the end and the map, from the records there are."""
    ends = [f for f in filed if not is_map(f.record.spec)]
    mapped = [f.record for f in filed if is_map(f.record.spec)]
    lengths = sorted({f.record.spec.task.length for f in ends}) or list(LENGTHS)
    return Section(
        "paper-rule",
        "The paper's own rule",
        "The adding problem from the paper's own start, 100 units, batches of 16. The map: 20,000 "
        "steps at T = 100.",
        tables=(end_table(filed), curve_table(filed), *map_tables(mapped)),
        figures=tuple(end_figure(length, ends) for length in lengths),
        sources=sources(filed),
    )


# -- the runs to the end ---------------------------------------------------------------------------


def end_table(filed: Sequence[Filed]) -> TableData:
    """Every method that was run to the end: solved at which steps, or how far it came."""
    records = [f.record for f in filed if not is_map(f.record.spec)]
    lines = []
    for group in sorted(groups(records).values(), key=_end_order):
        spec, keys = group[0].spec, tuple(record.hash for record in group)
        by_seed = sorted(group, key=lambda record: record.spec.seed)
        control, path = PAPER.get(spec.task.length, (math.nan, math.nan))
        printed = path if spec.optimiser.name == "path-sgd-paper" else control
        lines.append(
            (
                Entry(describe(spec)),
                Entry(str(spec.task.length)),
                Entry(f"{printed:g}"),
                Entry(", ".join(f"{100 * record.test:.2g}" for record in by_seed), keys),
                Entry(solved_words(group), keys),
                Entry(", ".join(f"{record.steps:,}" for record in by_seed), keys),
            )
        )
    columns = ("method", "T", "paper, 100 MSE", "ours, 100 MSE, each seed", "solved", "steps")
    return TableData(
        "Runs to the end: 100 MSE on 10,000 fresh sequences, below 0.1 is solved",
        columns,
        tuple(lines),
    )


def solved_words(group: Sequence[Record]) -> str:
    """How many of some runs are solved, and how many diverged."""
    solved, diverged = (
        sum(record.outcome == outcome for record in group) for outcome in ("solved", "diverged")
    )
    return f"{solved} of {len(group)}" + (f", {diverged} diverged" if diverged else "")


MARKS = (10_000, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_000_000)


def curve_table(filed: Sequence[Filed], least: int = 100_000) -> TableData:
    """The longest runs: median validation figure in each interval between marks."""
    records = [f.record for f in filed if not is_map(f.record.spec) and f.record.steps >= least]
    records.sort(
        key=lambda record: (record.spec.task.length, describe(record.spec), record.spec.seed)
    )
    lines = []
    for record in records:
        row = [Entry(describe(record.spec), (record.hash,)), Entry(str(record.spec.task.length))]
        for before, mark in itertools.pairwise((0, *MARKS)):
            since = [
                point.metrics["valid"] for point in record.curve if before < point.step <= mark
            ]
            row.append(Entry(f"{statistics.median(since):.2g}" if since else "—"))
        lines.append((*row, Entry(f"{max(point.metrics['valid'] for point in record.curve):.2g}")))
    columns = ("method", "T", *(f"{mark:,}" for mark in MARKS), "largest")
    caption = (
        "Validation MSE, medians of the evaluations up to each number of steps; "
        "answering 1 has 0.167."
    )
    return TableData("The long runs, step by step", columns, tuple(lines), caption)


def _end_order(group: Sequence[Record]) -> tuple[Any, ...]:
    spec = group[0].spec
    return spec.task.length, spec.optimiser.name != "sgd", min(record.valid for record in group)


def end_figure(length: int, filed: Sequence[Filed]) -> FigureData:
    """Validation error over steps: the control, and the best of the rule's runs."""
    chosen = [f for f in filed if f.record.spec.task.length == length]
    labels = {"sgd": "IRNN, SGD", "path-sgd-paper": "RNN-Path, the paper's rule"}
    rows = [ComparisonRow(label, None, uses(optimiser=name)) for name, label in labels.items()]
    return curves(f"T = {length}", rows, chosen, x="step", y_label="validation MSE", log_y=True)


def describe(spec: RunSpec) -> str:
    """A run's method in words, apart from length and seed."""
    known = dict(settings(spec))
    words = ["IRNN, SGD" if spec.optimiser.name == "sgd" else reading_words(known)]
    words.append(f"rate {known['lr']:g}{falling_words(known)}")
    if spec.optimiser.name == "sgd":
        words.append(f"gradient ≤ {known['clip']:g}")
    else:
        words += [bound_words(known), scale_words(known)]
        words += [f"momentum {known['momentum']:g}"] if known["momentum"] else []
        words += [f"κ every {known['refresh_every']} steps"] if known["refresh_every"] > 1 else []
    return ", ".join(words)


def falling_words(known: dict[str, Any]) -> str:
    """How the rate falls, if it does."""
    if known["decay"] == "constant":
        return ""
    return f" falling over {known['decay_steps']:,} steps" if known["decay_steps"] else " falling"


def reading_words(known: dict[str, Any]) -> str:
    """Which paths a reading counts."""
    parts = ["κ1 + κ2" if known["both_terms"] else "κ1"]
    parts += ["initial state counted"] if known["initial_state"] else []
    parts += ["every output"] if known["every_output"] else []
    parts += [] if known["biases"] else ["no biases"]
    return "Path-SGD, " + ", ".join(parts)


def bound_words(known: dict[str, Any]) -> str:
    """What is bounded by how much."""
    return f"{known['clip_on']} ≤ {known['clip']:g}" if known["clip"] else "no bound"


def scale_words(known: dict[str, Any]) -> str:
    """Whether the constant is there."""
    return "SGD's scale" if known["scale"] == "sgd" else "no constant"


# -- the map ---------------------------------------------------------------------------------------

LEARNS = 0.9
"""A run below this share of chance has learnt something."""


def map_tables(records: Sequence[Record]) -> list[TableData]:
    """One table per scale: a line per bound and reading, a column per rate."""
    tables = []
    for kind, title in (("sgd", "with SGD's scale"), ("kappa", "without a constant")):
        chosen = [r for r in records if dict(settings(r.spec))["scale"] == kind]
        if chosen:
            tables.append(map_table(title, chosen))
    return tables


def map_table(title: str, records: Sequence[Record]) -> TableData:
    """Best validation MSE of the runs that learn; × diverged, – stayed at chance, · not run."""
    rates = sorted({rate_of(record.spec) for record in records}, reverse=True)
    found: dict[tuple[str, str], dict[float, Record]] = {}
    for record in records:
        known = dict(settings(record.spec))
        found.setdefault((bound_words(known), reading_words(known)), {})[rate_of(record.spec)] = (
            record
        )
    lines = tuple(
        (Entry(bound), Entry(reading), *(map_entry(by_rate.get(rate)) for rate in rates))
        for (bound, reading), by_rate in sorted(found.items())
    )
    columns = ("bound", "reading", *(f"{rate:g}" for rate in rates))
    caption = (
        "Best validation MSE of the runs that learn; × diverged, – stayed at chance, · not run."
    )
    return TableData(f"The map, {title}: 20,000 steps at T = 100, by rate", columns, lines, caption)


def map_entry(record: Record | None) -> Entry:
    """One run in a sign or a number."""
    if record is None:
        return Entry("·")
    if verdict(record) == "diverged":
        return Entry("×", (record.hash,))
    learnt = record.valid < LEARNS * record.spec.task.chance
    return Entry(f"{record.valid:.2g}" if learnt else "–", (record.hash,))


# -- the constant ----------------------------------------------------------------------------------


def constant(spec: RunSpec) -> float:
    """|grad| / |grad / kappa| at the first step of a run: SGD's unit in the paper's."""
    trainer = Trainer(spec, spec.task.prepare(None))
    trainer.stepper.step(trainer.stream.next(), None)
    return float(trainer.stepper.optimiser.param_groups[0]["constant"])


def constants_table() -> TableData:
    """The constant of every reading at the paper's start, measured anew; needs no records."""
    lines = []
    for reading in READINGS:
        base = run("adding", "rnn_path", "path-sgd-paper", **reading)
        found = [constant(spec) for spec in over(base, length=LENGTHS)]
        lines.append(
            (
                Entry(reading_words(dict(settings(base)))),
                *(Entry(f"{value:.1e}") for value in found),
            )
        )
    columns = ("reading", *(f"T = {length}" for length in LENGTHS))
    return TableData(
        "SGD's rate 1 is this rate of grad / κ, at the paper's start (first seed)",
        columns,
        tuple(lines),
    )


STUDY = Study(
    name="paper-rule",
    title="The paper's own rule on the adding problem, to the end, and a map of its readings",
    paper_ref=PAPER_REF,
    duration={"paper": "a week on two cores", "laptop": "a day on two cores", "smoke": "seconds"},
    stages=(first_stage,),
    section=section,
    tables={
        "paper-rule-to-the-end": lambda filed: markdown(end_table(filed)),
        "paper-rule-curves": lambda filed: markdown(curve_table(filed)),
        "paper-rule-map": lambda filed: titled(
            map_tables([f.record for f in filed if is_map(f.record.spec)])
        ),
        "paper-rule-constants": lambda filed: markdown(constants_table()),
    },
)

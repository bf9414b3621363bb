"""Every ingredient of PathAdam on nets that train for longer than in the comparison.

Beyond the paper.  The adding problem with the steps that it takes to solve it, an epoch of
characters, and two of digits read pixel by pixel; every row at the same rates, from a start that is
balanced and from one that is badly scaled.  Cells are ordered seed by seed, so that a run that is
cut short has fewer seeds of everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from studies.compare.contest import (
    BADLY_SCALED,
    INGREDIENT_RATES,
    INGREDIENTS,
    Problem,
    can_run,
    contest,
    spec_of,
)
from studies.compare.entries import NOTHING, STARTS, keys
from studies.compare.ingredients import ingredient_tables, runs_at
from studies.compare.scores import spikes

from pathsgd_lab.flags import command_of
from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies.study import Scale, Study, cells, over, seed_by_seed
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "beyond the paper: what does the work"
_START = {"others_range": 0.3, "mean_bias": True}
_LENGTHY: dict[str, Any] = {
    "length": 100,
    "steps": 3000,
    "eval_every": 50,
    "valid_size": 1000,
    **_START,
}
_TEXT: dict[str, Any] = {"batch_size": 64, "window": 50, "eval_every": 392, "eval_limit": 50}
_DIGITS: dict[str, Any] = {
    "others_range": 0.3,
    "batch_size": 32,
    "eval_every": 430,
    "eval_limit": 10,
}
_SMOKE: dict[str, Any] = {"hidden": 4, "steps": 4, "eval_every": 2, "batch_size": 4}
PROBLEMS = {
    "adding problem, T = 100, 100 units, 3000 steps": Problem("adding", "rnn_path", {
        "paper": _LENGTHY,
        "laptop": _LENGTHY,
        "smoke": {"length": 6, "hidden": 4, "steps": 4, "eval_every": 2, "valid_size": 5,
                  "test_size": 5, **_START}},
        until_solved=True),
    "PTB characters, an epoch, 256 units": Problem("ptb_char", "rnn_path", {
        "paper": {**_TEXT, "hidden": 512, "epochs": 8.0},
        "laptop": {**_TEXT, "hidden": 256, "epochs": 1.0},
        "smoke": {**_SMOKE, "window": 6, "limit": 1500, "eval_limit": 2}}),
    "sequential MNIST, two epochs, 100 units": Problem("smnist", "rnn_path", {
        "paper": {**_DIGITS, "epochs": 20.0},
        "laptop": {**_DIGITS, "epochs": 2.0},
        "smoke": {**_SMOKE, "subsample": 7, "limit": 40, "valid_size": 10, "eval_limit": 2}}),
}  # fmt: skip
RATES = {
    "adding": INGREDIENT_RATES,
    "ptb_char": INGREDIENT_RATES,
    "smnist": (1e-3, 3e-4, 3e-3, 1e-4),
}
SEEDS: dict[Scale, int] = {"paper": 5, "laptop": 5, "smoke": 1}


def stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Every ingredient at every rate from both starts, seed by seed and problem by problem."""
    specs = []
    for problem in PROBLEMS.values():
        rates = RATES[problem.task] if scale != "smoke" else RATES[problem.task][:1]
        kinds = [spec_of(contender, problem, scale) for contender in INGREDIENTS.values()]
        kinds = [spec for spec in kinds if can_run(spec)]
        specs += [
            s
            for rate in rates
            for kind in kinds
            for s in over(kind, lr=[rate], unbalanced=[1.0, BADLY_SCALED])
        ]
    return cells(seed_by_seed(specs, range(SEEDS[scale])), PAPER_REF)


def calm_tables(records: Sequence[Record]) -> list[TableData]:
    """How calm runs that are meant to solve a problem are, and the worst that they are seen at."""
    tables = []
    for label, problem in PROBLEMS.items():
        found = contest(records, INGREDIENTS, {label: problem})
        if not problem.until_solved or not found:
            continue
        places = [
            (start, rate) for start in STARTS.values() for rate in sorted(RATES[problem.task])
        ]
        rows = [
            (
                Entry(name),
                *(_calm(runs_at(found[name, label], start, rate)) for start, rate in places),
            )
            for name in INGREDIENTS
            if (name, label) in found
        ]
        columns = (
            "",
            *(f"{start}, {rate:g}" for start in STARTS for rate in sorted(RATES[problem.task])),
        )
        caption = (
            "Runs that diverge or have an evaluation after the first above twice chance, and the "
            "largest of these evaluations in any run."
        )
        tables.append(TableData(f"Spikes, {label}", columns, tuple(rows), caption))
    return tables


def _calm(group: Sequence[Record]) -> Entry:
    if not group:
        return NOTHING
    worst = max(
        math.inf
        if r.outcome == "diverged"
        else max(p.metrics["valid"] for p in r.curve[1:] or r.curve)
        for r in group
    )
    return Entry(f"{sum(map(spikes, group))} of {len(group)}, {worst:.2g}", keys(group))


def commands_table() -> TableData:
    """A command for one run of each ingredient: adding, usual rate, balanced, first seed."""
    problem = next(iter(PROBLEMS.values()))
    rows = [
        (Entry(name), Entry(f"`{command_of(spec_of(contender, problem, 'laptop'))}`"))
        for name, contender in INGREDIENTS.items()
    ]
    return TableData("Every ingredient as a command", ("", "command"), tuple(rows))


def section(filed: Sequence[Filed]) -> Section:
    """Tables of one row per ingredient."""
    records = [f.record for f in filed]
    return Section(
        "ingredients",
        "What does the work",
        "From a start that is balanced or badly scaled (each unit by a factor between 1/100 and "
        "100), the same clip and the same rates for everybody. The adding problem is solved with a "
        "test error below 0.001.",
        tables=(*ingredient_tables(records, PROBLEMS), *calm_tables(records)),
        sources=sources(filed),
    )


STUDY = Study(
    name="ingredients",
    title="What does the work, ingredient by ingredient",
    paper_ref=PAPER_REF,
    duration={
        "paper": "days on two cores",
        "laptop": "some hours on two cores",
        "smoke": "seconds",
    },
    stages=(stage,),
    section=section,
    tables={"ingredients-commands": lambda filed: markdown(commands_table())},
)

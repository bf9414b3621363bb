"""Tables of PathAdam's ingredients, and of what helps nets without recurrence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from studies.compare import scores
from studies.compare.contest import (
    INGREDIENT_PROBLEMS,
    INGREDIENTS,
    LATTICE,
    PROBLEMS,
    SURVIVAL,
    SURVIVAL_PROBLEM,
    SURVIVAL_RATES,
    Problem,
    contest,
    nearest,
)
from studies.compare.entries import NOTHING, STARTS, figure, keys

from pathsgd_lab.report.model import Entry, TableData
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies.study import rate_of


def ingredient_tables(
    records: Sequence[Record], problems: Mapping[str, Problem] | None = None
) -> list[TableData]:
    """One row per ingredient of PathAdam and problem: medians by rate and start."""
    problems = problems or {name: PROBLEMS[name] for name in INGREDIENT_PROBLEMS}
    found = contest(records, INGREDIENTS, problems)
    tables = []
    for label, problem in problems.items():
        runs = {name: found[name, label] for name in INGREDIENTS if (name, label) in found}
        if not runs:
            continue
        rates = sorted({LATTICE[nearest(rate_of(r.spec))] for mine in runs.values() for r in mine})
        rows = [
            (
                Entry(name),
                *(_cell(mine, start, rate, problem) for start in STARTS.values() for rate in rates),
            )
            for name, mine in runs.items()
        ]
        columns = ("", *(f"{start}, {rate:g}" for start in STARTS for rate in rates))
        counted = "how many of them are solved" if problem.until_solved else "how many"
        caption = (
            f"Test figures, medians over seeds where there are several, and {counted}; "
            "* marks runs with a spike."
        )
        tables.append(TableData(f"Ingredients, {label}", columns, tuple(rows), caption))
    return tables


def survival_table(records: Sequence[Record]) -> TableData:
    """Ways to keep a net without recurrence alive at high rates: the error at the end of a run."""
    found = contest(records, SURVIVAL)
    rows = []
    for name in SURVIVAL:
        mine = found.get((name, SURVIVAL_PROBLEM), [])
        rows.append((Entry(name), *(_end(mine, rate) for rate in SURVIVAL_RATES)))
    columns = ("", *(f"{rate:g}" for rate in SURVIVAL_RATES))
    caption = (
        "Validation error in per cent at the last evaluation, medians over seeds; "
        "naming one digit has about 90."
    )
    return TableData(
        f"How runs end at high learning rates, {SURVIVAL_PROBLEM}", columns, tuple(rows), caption
    )


def runs_at(records: Sequence[Record], start: float, rate: float) -> list[Record]:
    """Those from a start at a rate."""
    return [
        r
        for r in records
        if r.spec.unbalanced == start and nearest(rate_of(r.spec)) == nearest(rate)
    ]


def _end(records: Sequence[Record], rate: float) -> Entry:
    group = runs_at(records, 1.0, rate)
    if not group:
        return NOTHING
    ends = [math.inf if r.outcome == "diverged" else r.curve[-1].metrics["valid"] for r in group]
    return Entry(figure(statistics.median(ends)), keys(group))


def _cell(records: Sequence[Record], start: float, rate: float, problem: Problem) -> Entry:
    group = runs_at(records, start, rate)
    if not group:
        return NOTHING
    solved = f"{sum(r.outcome == 'solved' for r in group)} of " if problem.until_solved else ""
    count = f" ({solved}{len(group)})" if len(group) > 1 else ""
    spikes = " *" if any(map(scores.spikes, group)) else ""
    return Entry(figure(statistics.median(r.test for r in group)) + count + spikes, keys(group))

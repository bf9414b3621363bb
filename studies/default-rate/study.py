"""What PathAdam's default learning rate rests on: one table of rates, from three studies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from studies.compare import scores
from studies.compare.contest import (
    CONTENDERS,
    INGREDIENTS,
    PROBLEMS,
    Contest,
    contest,
    nearest,
)
from studies.compare.entries import NOTHING, STARTS, figure, keys, percent
from studies.compare.ingredients import runs_at
from studies.growth import study as growth
from studies.ingredients import study as ingredients

from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies.study import Study, rate_of
from pathsgd_lab.sweep.results import Filed

RATES = (1e-3, 3e-3, 1e-2)
CONTENDER, INGREDIENT = "PathAdam", "PathAdam (the default)"
Row = Callable[[float], Entry]


def default_rate_table(filed: Sequence[Filed]) -> TableData:
    """PathAdam at three rates, where it has been run at one of them at least."""
    rows = {**compared(_records(filed, "compare")), **at_length(_records(filed, "ingredients"))}
    rows |= full_length(_records(filed, "growth"))
    entries = {words: [row(rate) for rate in RATES] for words, row in rows.items()}
    lines = tuple(
        (Entry(words), *line) for words, line in entries.items() if set(line) != {NOTHING}
    )
    caption = "Spikes: runs that diverge, or have an evaluation after the first above twice chance."
    return TableData(
        "PathAdam by learning rate", ("", *(f"{rate:g}" for rate in RATES)), lines, caption
    )


def _records(filed: Sequence[Filed], study: str) -> list[Record]:
    return [f.record for f in filed if f.study == study]


def compared(records: Sequence[Record]) -> dict[str, Row]:
    """The comparison's eight problems, from each start."""
    everything = contest(records, CONTENDERS)
    best = scores.best_tests(everything)
    goal = scores.targets(scores.at_start(everything, 1.0))
    rows: dict[str, Row] = {}
    for word, start in STARTS.items():
        mine = {
            pair: found
            for pair, found in scores.at_start(everything, start).items()
            if pair[0] == CONTENDER
        }
        rows[f"comparison, {word}: mean excess in %"] = _excess(mine, best)
        rows[f"comparison, {word}: targets reached"] = _reached(mine, goal)
        rows[f"comparison, {word}: spikes"] = _spiked(
            [r for found in mine.values() for r in found], start
        )
    return rows


def _excess(mine: Contest, best: Mapping[str, float]) -> Row:
    return lambda rate: percent(
        *scores.mean_excess(mine, CONTENDER, best, lambda _: nearest(rate)), len(PROBLEMS)
    )


def _reached(mine: Contest, goal: Mapping[str, float]) -> Row:
    def entry(rate: float) -> Entry:
        runs = [
            (r, label)
            for (_, label), found in mine.items()
            for r in scores.by_rate(found).get(nearest(rate), [])
        ]
        reached = [
            scores.time_to(r, goal[label], "step") < float("inf")
            for r, label in runs
            if label in goal
        ]
        return _share(reached, (r for r, _ in runs))

    return entry


def _spiked(records: Sequence[Record], start: float) -> Row:
    def entry(rate: float) -> Entry:
        group = runs_at(records, start, rate)
        return _share([scores.spikes(r) for r in group], group)

    return entry


def _share(true: Sequence[bool], records: Iterable[Record]) -> Entry:
    return Entry(f"{sum(true)} of {len(true)}", keys(records)) if true else NOTHING


def at_length(records: Sequence[Record]) -> dict[str, Row]:
    """The ingredients' problems: number of solved runs where that is the aim, or final figures."""
    rows: dict[str, Row] = {}
    for label, problem in ingredients.PROBLEMS.items():
        mine = contest(records, {INGREDIENT: INGREDIENTS[INGREDIENT]}, {label: problem}).get(
            (INGREDIENT, label), []
        )
        for word, start in STARTS.items():
            if problem.until_solved:
                rows[f"{label}, {word}: solved"] = _solved(
                    [r for r in mine if r.spec.unbalanced == start]
                )
                rows[f"{label}, {word}: spikes"] = _spiked(mine, start)
            else:
                rows[f"{label}, {word}"] = _median(mine, start)
    return rows


def _solved(records: Sequence[Record]) -> Row:
    def entry(rate: float) -> Entry:
        group = [r for r in records if nearest(rate_of(r.spec)) == nearest(rate)]
        return _share([r.test < 1e-3 for r in group], group)

    return entry


def _median(records: Sequence[Record], start: float) -> Row:
    def entry(rate: float) -> Entry:
        group = runs_at(records, start, rate)
        return (
            Entry(figure(statistics.median(r.test for r in group)), keys(group))
            if group
            else NOTHING
        )

    return entry


def full_length(records: Sequence[Record]) -> dict[str, Row]:
    """The adding problem at full length from the first step."""
    return {
        f"adding problem, T = {length}, 100 units: solved": _solved(
            [r for r in records if growth.at_full_length(length)(r.spec)]
        )
        for length, _ in growth.SIZES["laptop"]["lengths"]
        if length < growth.LONG
    }


def section(filed: Sequence[Filed]) -> Section:
    """One table."""
    text = "Where PathAdam has been run at 0.001, 0.003 or 0.01."
    title = "PathAdam's default learning rate"
    return Section("default-rate", title, text, tables=(default_rate_table(filed),))


STUDY = Study(
    name="default-rate",
    title="PathAdam's default learning rate",
    section=section,
    reads=("compare", "ingredients", "growth"),
    tables={"default-rate": lambda filed: markdown(default_rate_table(filed))},
)

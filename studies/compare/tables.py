"""The comparison as tables and figures, from records alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from studies.compare import scores
from studies.compare.contest import (
    CONTENDERS,
    LATTICE,
    OURS,
    PROBLEMS,
    Contest,
    contest,
    nearest,
)
from studies.compare.entries import NOTHING, STARTS, figure, keys, percent
from studies.compare.ingredients import ingredient_tables, survival_table

from pathsgd_lab.report.footnotes import Footnotes, notes_of
from pathsgd_lab.report.model import (
    PALETTE,
    Entry,
    FigureData,
    HeatData,
    Section,
    Series,
    TableData,
)
from pathsgd_lab.report.select import best_group, spread
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.sweep.results import Filed


def best_table(records: Sequence[Record], start: float) -> TableData:
    """Test metric of each contender on each problem at its best rate by the validation set."""
    chosen = scores.at_start(contest(records, CONTENDERS), start)
    best = {pair: best_group(found) for pair, found in chosen.items()}
    footnotes = Footnotes()
    rows = []
    for name in CONTENDERS:
        row = [Entry(name)]
        for label in PROBLEMS:
            group = best.get((name, label), [])
            if not group:
                row.append(NOTHING)
                continue
            peers = [shown for (_, where), shown in best.items() if where == label]
            marks = footnotes.marks(notes_of(group, chosen[name, label], peers))
            row.append(
                Entry(
                    f"{figure(spread([r.test for r in group]).mean)} {marks}".strip(), keys(group)
                )
            )
        rows.append(tuple(row))
    word = "balanced" if start == 1.0 else "badly scaled"
    return TableData(f"Test figures at each contender's best rate, {word} starts", ("", *PROBLEMS),
                     tuple(rows),
                     footnotes.below())  # fmt: skip


def fixed_table(records: Sequence[Record]) -> TableData:
    """One rate for everything: runs that reach the targets, excess and spikes, both starts."""
    everything = contest(records, CONTENDERS)
    balanced = scores.at_start(everything, 1.0)
    goal, best = scores.targets(balanced), scores.best_tests(everything)
    rows = []
    for name in CONTENDERS:
        place = scores.fixed_place(balanced, name, best)
        if place is None:
            rows.append((Entry(name), *[NOTHING] * 7))
            continue
        cells = [Entry(name), Entry(f"{LATTICE[place]:g}")]
        for start in STARTS.values():
            mine = {
                pair: found
                for pair, found in scores.at_start(everything, start).items()
                if pair[0] == name
            }
            runs = [
                (r, label)
                for (_, label), found in mine.items()
                for r in scores.by_rate(found).get(place, [])
            ]
            reached = [
                scores.time_to(r, goal[label], "step") < math.inf
                for r, label in runs
                if label in goal
            ]
            spiked = sum(scores.spikes(r) for r, _ in runs)
            value, count = scores.mean_excess(mine, name, best, lambda _: place)  # noqa: B023 - used at once
            hashes = keys(r for r, _ in runs)
            cells += [Entry(f"{sum(reached)} of {len(reached)}", hashes),
                      percent(value, count, _problems(name)),
                      Entry(f"{spiked} of {len(runs)}", hashes)]  # fmt: skip
        rows.append(tuple(cells))
    columns = (
        "",
        "rate",
        *(f"{what}, {start}" for start in STARTS for what in ("targets", "excess in %", "spikes")),
    )
    caption = (
        "The rate is the one with the least mean excess from balanced starts, among those run on "
        "all problems. Targets: runs that reach them. Spikes: runs that diverge, or have an "
        "evaluation after the first above twice chance."
    )
    return TableData("One setting for all problems", columns, tuple(rows), caption)


def _problems(name: str) -> int:
    return len(CONTENDERS[name].only) or len(PROBLEMS)


def off_table(records: Sequence[Record]) -> TableData:
    """What a wrong rate costs, from balanced starts."""
    balanced = scores.at_start(contest(records, CONTENDERS), 1.0)
    best = scores.best_tests(balanced)
    rows = []
    for name in CONTENDERS:
        mine = {label: found for (who, label), found in balanced.items() if who == name}
        places = {label: scores.best_place(found) for label, found in mine.items()}
        value, count = scores.mean_excess(balanced, name, best, places.__getitem__)
        entries = [percent(value, count, _problems(name))]
        entries += [
            percent(*scores.off_by(balanced, name, steps), _problems(name)) for steps in (1, 2)
        ]
        rows.append((Entry(name), *entries))
    columns = ("", "best rate of each problem", "off by 3", "off by 10")
    caption = "On the worse of the two sides, over problems of which both sides were run."
    return TableData(
        "Mean excess in per cent when the rate is off, balanced starts",
        columns,
        tuple(rows),
        caption,
    )


RATE_STEPS = {"÷ 10": -2, "÷ 3": -1, "usual rate": 0, "× 3": 1, "× 10": 2}
"""Rates in steps of the grid from the usual one."""


def rates_table(records: Sequence[Record], start: float) -> TableData:
    """The heat map of rates in figures: mean excess over all problems at each rate."""
    found = _by_rate(records, start)
    rows = [
        (
            Entry(f"{name} ({CONTENDERS[name].rate:g})"),
            *(percent(*value, _problems(name)) for value in values),
        )
        for name, values in found.items()
    ]
    word = "balanced" if start == 1.0 else "badly scaled"
    return TableData(
        f"Mean excess in per cent by learning rate, {word} starts", ("", *RATE_STEPS), tuple(rows)
    )


def rates_heat(records: Sequence[Record]) -> list[HeatData]:
    """Heat maps, one per start, over contenders and rates run on all problems; best row first."""
    maps = []
    for word, start in STARTS.items():
        found = {
            name: values
            for name, values in _by_rate(records, start).items()
            if not CONTENDERS[name].only
        }
        rows = {
            name: [100 * v if n == len(PROBLEMS) else None for v, n in values]
            for name, values in found.items()
        }
        kept = [
            i for i in range(len(RATE_STEPS)) if any(row[i] is not None for row in rows.values())
        ]
        columns = tuple(name for i, name in enumerate(RATE_STEPS) if i in kept)
        maps.append(
            HeatData(
                f"{word} starts",
                columns,
                {n: tuple(row[i] for i in kept) for n, row in rows.items()},
            )
        )

    def least(name: str) -> float:
        return min((v for v in maps[0].rows[name] if v is not None), default=math.inf)

    order = sorted(maps[0].rows, key=least)
    return [HeatData(m.title, m.columns, {name: m.rows[name] for name in order}) for m in maps]


def _by_rate(records: Sequence[Record], start: float) -> dict[str, list[tuple[float, int]]]:
    """Mean excess of every contender at each of the ``RATE_STEPS``, and over how many problems."""
    everything = contest(records, CONTENDERS)
    chosen, best = scores.at_start(everything, start), scores.best_tests(everything)
    found: dict[str, list[tuple[float, int]]] = {}
    for name, contender in CONTENDERS.items():
        places = [nearest(contender.rate) + step for step in RATE_STEPS.values()]
        found[name] = [scores.mean_excess(chosen, name, best, lambda _: place) for place in places]  # noqa: B023 - used at once
    return found


def buys_table(records: Sequence[Record]) -> TableData:
    """Six lines: ours beside Adam, each at one rate, and beside the best rival of each line."""
    fixed = {row[0].text: row for row in fixed_table(records).rows}
    off = {row[0].text: row[-1] for row in off_table(records).rows}
    everywhere = [
        name for name in CONTENDERS if not CONTENDERS[name].only and fixed[name][1] is not NOTHING
    ]
    rivals = [name for name in everywhere if name not in OURS]
    ours = [name for name in ("PathAdam", "SOAP in path coordinates") if name in everywhere]
    lines: list[tuple[str, Callable[[str], Entry], bool]] = [
        ("targets reached, balanced starts", lambda name: fixed[name][2], True),
        ("targets reached, badly scaled starts", lambda name: fixed[name][5], True),
        ("mean excess in %, balanced starts", lambda name: fixed[name][3], False),
        ("mean excess in %, badly scaled starts", lambda name: fixed[name][6], False),
        ("mean excess in % with the rate off by ten", off.__getitem__, False),
        (
            "runs with a spike, both starts",
            lambda name: _both(fixed[name][4], fixed[name][7]),
            False,
        ),
    ]
    rows = []
    for words, entry, more_is_better in lines:
        known = {name: _leading(entry(name)) for name in rivals if entry(name) is not NOTHING}
        best = (max if more_is_better else min)(known, key=known.__getitem__) if known else None
        last = Entry(f"{entry(best).text} ({best})") if best else NOTHING
        rows.append(
            (Entry(words), *(entry(name) for name in (*ours, "Adam") if name in everywhere), last)
        )
    columns = ("", *ours, *(["Adam"] if "Adam" in everywhere else []), "best rival in this line")
    caption = (
        "Everybody at the one learning rate that serves it best over all problems; in the fifth "
        "line ten times more or less, whichever is worse, than what is best for each problem."
    )
    return TableData("At one learning rate for everything", columns, tuple(rows), caption)


def _leading(entry: Entry) -> float:
    """The number that an entry begins with."""
    return float(entry.text.split()[0])


def _both(one: Entry, other: Entry) -> Entry:
    """Two counts, each "so many of so many", in one."""
    pairs = [[int(word) for word in entry.text.split(" of ")] for entry in (one, other)]
    return Entry(
        f"{sum(p[0] for p in pairs)} of {sum(p[1] for p in pairs)}", (*one.records, *other.records)
    )


TAUS = (1.0, 1.5, 2.0, 3.0, scores.LONGEST)


def profile_table(records: Sequence[Record]) -> TableData:
    """Who reaches the targets, and how soon."""
    balanced = scores.at_start(contest(records, CONTENDERS), 1.0)
    goal = scores.targets(balanced)
    by_steps, by_seconds = (scores.times(balanced, goal, unit) for unit in ("step", "cpu_seconds"))  # type: ignore[arg-type]
    rows = []
    for name in CONTENDERS:
        mine = [time for (who, _), time in by_steps.items() if who == name]
        texts = ["—"] * (3 + len(TAUS))
        if mine:
            texts = [f"{sum(time < math.inf for time in mine)} of {len(mine)}"]
            texts += [f"{scores.profile(by_steps, name, tau):.2f}" for tau in TAUS]
            texts += [
                f"{scores.profile_score(found, name):.2f}" for found in (by_steps, by_seconds)
            ]
        rows.append((Entry(name), *map(Entry, texts)))
    columns = (
        "",
        "reached",
        *(f"τ = {tau:g}" for tau in TAUS),
        "mean height",
        "mean height in seconds",
    )
    caption = (
        "Reached: problems whose target is reached. τ: share of the problems whose target is "
        "reached within τ times the steps of the fastest contender. Mean height: of that profile "
        "for τ from 1 to 4, in steps and in processor seconds."
    )
    return TableData(
        "Time to the target at the best rate, balanced starts", columns, tuple(rows), caption
    )


def profile_figure(records: Sequence[Record]) -> FigureData:
    """Share of the problems within tau times the fastest contender, in steps."""
    balanced = scores.at_start(contest(records, CONTENDERS), 1.0)
    found = scores.times(balanced, scores.targets(balanced), "step")
    taus = [1.0 + 0.02 * i for i in range(151)]
    everywhere = [name for name in scores.names_in(balanced) if not CONTENDERS[name].only]
    ranked = sorted(everywhere, key=lambda name: -scores.profile_score(found, name))
    rivals = [name for name in ranked if name not in OURS][
        : len(PALETTE) - len(OURS)
    ]  # as many as have a colour
    series = tuple(
        Series(
            name,
            tuple(taus),
            tuple(scores.profile(found, name, tau) for tau in taus),
            dashed=name not in OURS,
        )
        for name in ranked
        if name in OURS or name in rivals
    )
    title = (
        "Problems reached within τ times the fastest's steps: "
        f"ours and the best {len(rivals)} rivals"
    )
    return FigureData(title, "τ", "share of problems", series)


def targets_table(records: Sequence[Record]) -> TableData:
    """What the problems are, and their targets."""
    everything = contest(records, CONTENDERS)
    goal, best = scores.targets(scores.at_start(everything, 1.0)), scores.best_tests(everything)
    rows = []
    for label in PROBLEMS:
        mine = [r for (_, where), found in everything.items() if where == label for r in found]
        if mine:
            record = mine[0]
            texts = (record.spec.task.metric, f"{record.parameters:,}",
                     f"{record.spec.budget.steps:,}",
                     figure(record.spec.task.chance),
                     figure(goal.get(label, math.nan)) if label in goal else "—",
                     figure(best[label]), str(len(mine)), _seeds(mine))  # fmt: skip
            rows.append((Entry(label), *map(Entry, texts)))
    columns = (
        "problem",
        "figure",
        "parameters",
        "steps",
        "chance",
        "target",
        "best of all runs",
        "runs",
        "seeds",
    )
    return TableData("The problems", columns, tuple(rows))


def _seeds(records: Sequence[Record]) -> str:
    seeds = sorted({r.spec.seed for r in records})
    counts = [sum(r.spec.seed == seed for r in records) for seed in seeds]
    return ", ".join(f"{count} runs of seed {seed}" for seed, count in zip(seeds, counts))


def goals_tables(records: Sequence[Record]) -> list[TableData]:
    """Ours against each problem's best rival: PathAdam untuned, rivals tuned once or not; SOAP."""
    everything = contest(records, CONTENDERS)
    balanced = scores.at_start(everything, 1.0)
    zero = scores.best_tests(everything)
    fixed = {name: scores.fixed_place(balanced, name, zero) for name in CONTENDERS}
    usual: dict[str, int | None] = {
        name: nearest(contender.rate) for name, contender in CONTENDERS.items()
    }
    adam, soap = "PathAdam", "SOAP in path coordinates"
    chosen = [
        (adam, "untuned", usual[adam], "one", fixed),
        (adam, "untuned", usual[adam], "usual", usual),
        (soap, "at its one rate", fixed[soap], "one", fixed),
    ]
    return [_goals_table(balanced, (ours, place, words), (kind, rates)) for ours, words, place,
            kind, rates in chosen
            if place is not None]  # fmt: skip


def _goals_table(
    balanced: Contest, ours: tuple[str, int, str], theirs: tuple[str, Mapping[str, int | None]]
) -> TableData:
    """Ours (name, place of its rate, and that in words) against the best rival (rate, place)."""
    (name_of_ours, place, words), (kind, rates) = ours, theirs
    rows = []
    for label in PROBLEMS:
        mine = scores.by_rate(balanced.get((name_of_ours, label), [])).get(place, [])
        rivals = {
            name: group
            for name, at in rates.items()
            if name not in OURS and at is not None
            and (group := scores.by_rate(balanced.get((name, label), [])).get(at, []))
        }  # fmt: skip
        if not mine or not rivals:
            continue
        figures = {name: statistics.median(r.test for r in group) for name, group in rivals.items()}
        value, best = statistics.median(r.test for r in mine), min(figures, key=figures.__getitem__)
        ahead = sum(value <= rival for rival in figures.values())
        difference = 100.0 * (value / figures[best] - 1.0) if math.isfinite(value) else math.inf
        rows.append(
            (
                Entry(label),
                Entry(figure(value), keys(mine)),
                Entry(f"{figure(figures[best])} ({best})", keys(rivals[best])),
                Entry(f"{difference:+.1f} %" if math.isfinite(difference) else "diverged"),
                Entry(f"{ahead} of {len(figures)}"),
            )
        )
    columns = ("problem", f"{name_of_ours} at {LATTICE[place]:g}", f"best rival at its {kind} rate",
               "difference",
               "rivals not ahead of it")  # fmt: skip
    best_fixed = "best fixed" if kind == "one" else kind
    title = f"{name_of_ours} {words} against rivals at their {best_fixed} rate, balanced starts"
    return TableData(title, columns, tuple(rows))


def coordinates_table(records: Sequence[Record]) -> TableData:
    """Others' optimisers with and without path coordinates, each start at its own best rate."""
    everything = contest(records, CONTENDERS)
    pairs = [
        (plain, name)
        for plain in CONTENDERS
        for name in CONTENDERS
        if name == f"{plain} in path coordinates"
    ]
    starts = {word: scores.at_start(everything, start) for word, start in STARTS.items()}
    rows = []
    for label in PROBLEMS:
        row = [Entry(label)]
        for name in (name for pair in pairs for name in pair):
            row += [_best(found.get((name, label), [])) for found in starts.values()]
        rows.append(tuple(row))
    columns = (
        "problem",
        *(f"{name}, {word}" for pair in pairs for name in pair for word in STARTS),
    )
    caption = "Test figures, means over seeds, at the learning rate with the best validation."
    return TableData("Other optimisers in path coordinates", columns, tuple(rows), caption)


def _best(records: Sequence[Record]) -> Entry:
    """The mean over seeds at the best rate."""
    if not records:
        return NOTHING
    group = best_group(records)
    return Entry(figure(spread([r.test for r in group]).mean), keys(group))


TABLES: dict[str, Callable[[Sequence[Record]], list[TableData]]] = {
    "problems": lambda records: [targets_table(records)],
    "buys": lambda records: [buys_table(records)],
    "fixed": lambda records: [fixed_table(records)],
    "goals": goals_tables,
    "best": lambda records: [best_table(records, start) for start in STARTS.values()],
    "off": lambda records: [off_table(records)],
    "rates": lambda records: [rates_table(records, start) for start in STARTS.values()],
    "profile": lambda records: [profile_table(records)],
    "coordinates": lambda records: [coordinates_table(records)],
    "ingredients": ingredient_tables,
    "survival": lambda records: [survival_table(records)],
}
"""The comparison's tables, by the names that pages call them by."""


def section(filed: Sequence[Filed]) -> Section:
    """The comparison's part of a report."""
    records = [f.record for f in filed]
    return Section(
        "compare",
        "The path optimisers against what people use",
        "Small ReLU nets; every contender at learning rates a factor of three apart, from balanced "
        "and from badly scaled starts. Excess: 0 is the best figure of any run on the problem, 100 "
        "% is chance.",
        tables=tuple(table for make in TABLES.values() for table in make(records)),
        figures=(profile_figure(records),),
        sources=sources(filed),
    )

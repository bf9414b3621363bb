"""Figures of merit of the comparison, from records alone.

    target of a problem    95 % of the way from chance to what Adam reaches on the validation
                           set at its best rate, from balanced starts
    time to the target     steps, or processor seconds, to the first evaluation at or below it;
                           infinite if there is none
    excess of a run        (test - best) / (chance - best), where best is the least test figure
                           of any run on the problem: 0 = best run, 1 = chance; 1 for a run
                           that diverged or is worse than chance
    profile                share of the problems on which a contender needs at most tau times
                           as long as the fastest (Dolan and Moré, 2002; AlgoPerf); its score
                           is the mean height for tau from 1 to 4

Several seeds of one setting count by their median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from studies.compare.contest import PROBLEMS, Contest, nearest

from pathsgd_lab.report.select import best_group, spread
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies.study import rate_of

REACH = 0.95
LONGEST = 4.0
"""Where a profile ends: four times as long as the fastest."""
TOO_HIGH = 2.0
"""An evaluation after the first that is above so many times chance is a spike."""
Unit = Literal["step", "cpu_seconds"]


def at_start(contest: Contest, start: float) -> Contest:
    """The runs from one start."""
    chosen = {
        pair: [r for r in records if r.spec.unbalanced == start]
        for pair, records in contest.items()
    }
    return {pair: records for pair, records in chosen.items() if records}


def names_in(contest: Contest) -> list[str]:
    """The contenders there are runs of."""
    return list(dict.fromkeys(name for name, _ in contest))


def targets(balanced: Contest) -> dict[str, float]:
    """The target of each problem that Adam was run on."""
    found = {}
    for label in PROBLEMS:
        if ("Adam", label) in balanced:
            group = best_group(balanced["Adam", label])
            chance, reached = group[0].spec.task.chance, spread([r.valid for r in group]).mean
            if math.isfinite(reached):
                found[label] = chance - REACH * (chance - reached)
    return found


def time_to(record: Record, target: float, unit: Unit) -> float:
    """When a run first had a validation figure at or below the target."""
    for point in record.curve:
        if point.metrics["valid"] <= target:
            return float(getattr(point, unit))
    return math.inf


def best_tests(contest: Contest) -> dict[str, float]:
    """The least test figure on each problem."""
    found: dict[str, float] = {}
    for (_, label), records in contest.items():
        found[label] = min(
            [found.get(label, math.inf), *(r.test for r in records if r.outcome != "diverged")]
        )
    return found


def excess(record: Record, best: float) -> float:
    """How far a run is from the best, in units of the way from the best to chance."""
    chance = record.spec.task.chance
    if record.outcome == "diverged" or not record.test < chance:
        return 1.0
    return (record.test - best) / (chance - best)


def by_rate(records: Sequence[Record]) -> dict[int, list[Record]]:
    """Runs by the place of their rate on the lattice."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(nearest(rate_of(record.spec)), []).append(record)
    return found


def excess_at(records: Sequence[Record], place: int, best: float) -> float | None:
    """Median excess over seeds at one rate; None where it was not run."""
    group = by_rate(records).get(place)
    return statistics.median(excess(r, best) for r in group) if group else None


def best_place(records: Sequence[Record]) -> int:
    """The rate that is best on the validation set, by its place."""
    return nearest(rate_of(best_group(records)[0].spec))


def fixed_place(contest: Contest, name: str, best: Mapping[str, float]) -> int | None:
    """A contender's single best rate: least mean excess among rates run on all its problems.

    best: the figure of each problem whose excess is 0, the same for who chooses and who prints.
    """
    mine = {label: records for (who, label), records in contest.items() if who == name}
    shared = (
        set.intersection(*(set(by_rate(records)) for records in mine.values())) if mine else set()
    )
    if not shared:
        return None

    def mean(place: int) -> float:
        return statistics.fmean(
            excess_at(records, place, best[label]) or 0.0 for label, records in mine.items()
        )

    return min(sorted(shared), key=mean)


def mean_excess(
    contest: Contest, name: str, best: Mapping[str, float], place: Callable[[str], int]
) -> tuple[float, int]:
    """Mean excess over problems at a rate that may depend on the problem; number of problems."""
    values = [
        value
        for (who, label), records in contest.items()
        if who == name and (value := excess_at(records, place(label), best[label])) is not None
    ]
    return (statistics.fmean(values) if values else math.nan), len(values)


def off_by(contest: Contest, name: str, steps: int) -> tuple[float, int]:
    """Mean excess some grid steps from the best rate, on the worse side; number of problems.

    A problem counts where both sides were run.
    """
    best = best_tests(contest)
    worse = []
    for (who, label), records in contest.items():
        if who == name:
            middle = best_place(records)
            sides = [excess_at(records, middle + side, best[label]) for side in (-steps, steps)]
            both = [value for value in sides if value is not None]
            if len(both) == 2:
                worse.append(max(both))
    return (statistics.fmean(worse) if worse else math.nan), len(worse)


def times(contest: Contest, goal: Mapping[str, float], unit: Unit) -> dict[tuple[str, str], float]:
    """Median time to the target at the rate that is best for contender and problem."""
    return {
        (name, label): statistics.median(time_to(r, goal[label], unit) for r in best_group(records))
        for (name, label), records in contest.items()
        if label in goal
    }


def profile(found: Mapping[tuple[str, str], float], name: str, tau: float) -> float:
    """Share of a contender's problems that take it at most tau times the fastest one's time."""
    mine = {label: time for (who, label), time in found.items() if who == name}
    fastest = {label: min(t for (_, where), t in found.items() if where == label) for label in mine}
    return (
        sum(time <= tau * fastest[label] < math.inf for label, time in mine.items()) / len(mine)
        if mine
        else 0.0
    )


def profile_score(found: Mapping[tuple[str, str], float], name: str) -> float:
    """Mean height of the profile for tau from 1 to ``LONGEST``, exactly: it is a step function."""
    mine = {label: time for (who, label), time in found.items() if who == name}
    total = 0.0
    for label, time in mine.items():
        fastest = min(t for (_, where), t in found.items() if where == label)
        if time < math.inf:
            total += max(0.0, LONGEST - time / fastest) / (LONGEST - 1.0)
    return total / len(mine) if mine else 0.0


def spikes(record: Record) -> bool:
    """Whether an evaluation after the first is far above chance, or the run diverged."""
    limit = TOO_HIGH * record.spec.task.chance
    return record.outcome == "diverged" or any(
        not p.metrics["valid"] <= limit for p in record.curve[1:]
    )

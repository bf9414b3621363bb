"""From many records to those of a table: groups over seeds, the best by validation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, canonical_json, settings

T = TypeVar("T", RunSpec, Record)


def method_of(spec: RunSpec, without: Sequence[str]) -> str:
    """What a run does apart from some settings, as a text that can be compared."""
    chosen = {name: value for name, value in settings(spec) if name not in (*without, "paper_ref")}
    names = [spec.task.name, spec.system.name, spec.optimiser.name]
    return canonical_json(
        [names, {k: list(v) if isinstance(v, tuple) else v for k, v in chosen.items()}]
    )


def groups(items: Iterable[T], without: Sequence[str] = ("seed",)) -> dict[str, list[T]]:
    """Runs that differ only in the settings ``without``."""
    found: dict[str, list[T]] = {}
    for item in items:
        spec = item.spec if isinstance(item, Record) else item
        found.setdefault(method_of(spec, without), []).append(item)
    return found


def score(record: Record) -> float:
    """Validation metric, infinite for a run that diverged: it has no result to choose it for."""
    value = math.inf if record.outcome == "diverged" else record.valid
    return value if value == value else math.inf


def best_group(records: Sequence[Record]) -> list[Record]:
    """The group over seeds with the best mean validation, among those with the most seeds.

    A rate that was tried on one seed only does not compete with one that was tried on five.  Where
    every group has a run that diverged, the group with the fewest of them; of several such groups
    the best by its other runs, and where there are none the group that lasted longest.
    """
    candidates = list(groups(records).values())
    most = max(map(len, candidates))
    return min((group for group in candidates if len(group) == most), key=_rank)


def _rank(group: Sequence[Record]) -> tuple[int, float, int]:
    """A sort key, smaller is better: runs without a result, mean score of the rest, -steps."""
    scores = [score(record) for record in group]
    finite = [value for value in scores if math.isfinite(value)]
    mean = statistics.fmean(finite) if finite else math.inf
    return len(scores) - len(finite), mean, -sum(record.steps for record in group)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a few numbers."""

    mean: float
    deviation: float
    count: int

    def text(self, digits: int) -> str:
        """As a table shows it; the deviation only where there is one."""
        if not math.isfinite(self.mean):
            return "—" if self.count == 0 else "diverged"
        deviation = f" ± {self.deviation:.{digits}f}" if self.count > 1 else ""
        return f"{self.mean:.{digits}f}{deviation}"


def spread(values: Sequence[float]) -> Spread:
    """Mean and deviation; not a number for none, infinite if one of them is."""
    if not values:
        return Spread(math.nan, math.nan, 0)
    if not all(map(math.isfinite, values)):
        return Spread(math.inf, math.nan, len(values))
    return Spread(
        statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values)
    )

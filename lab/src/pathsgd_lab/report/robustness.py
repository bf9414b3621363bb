"""The robustness map: which (learning rate, seed, initial scale) cells solve, stall or diverge.

A row is a way to train (whatever differs between the records except rate and seed), a column a
learning rate, a cell the verdicts over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from pathsgd_lab.run.optimisers.retired import RETIRED
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import settings

Verdict = Literal["solved", "stalled", "diverged"]
VERDICTS: tuple[Verdict, ...] = ("solved", "stalled", "diverged")


WORSE_THAN_CHANCE = 10.0
"""A run whose last validation is so many times worse than guessing has blown up, if not all the way
to infinity."""


def verdict(record: Record) -> Verdict:
    """A run that ended without solving its task has stalled, unless it has blown up."""
    if record.outcome == "solved":
        return "solved"
    last = record.curve[-1].metrics["valid"] if record.curve else 0.0
    blown_up = not last <= WORSE_THAN_CHANCE * record.spec.task.chance
    return "diverged" if record.outcome == "diverged" or blown_up else "stalled"


@dataclass(frozen=True)
class RobustnessMap:
    """Verdicts by row and learning rate, in the order of seeds."""

    rows: tuple[str, ...]
    rates: tuple[float, ...]
    cells: dict[tuple[str, float], tuple[Verdict, ...]]

    def counts(self, row: str, rate: float | None = None) -> dict[Verdict, int]:
        """How many runs of a row (at one rate) ended how."""
        chosen = [
            v
            for (r, l), verdicts in self.cells.items()
            if r == row and rate in (None, l)
            for v in verdicts
        ]
        return {v: chosen.count(v) for v in VERDICTS}


def robustness_map(records: Sequence[Record]) -> RobustnessMap:
    """The map of some records of one task."""
    labels = row_labels(records)
    rates = sorted({_rate(r) for r in records})
    cells: dict[tuple[str, float], list[tuple[int, Verdict]]] = {}
    for record, label in zip(records, labels, strict=True):
        cells.setdefault((label, _rate(record)), []).append((record.spec.seed, verdict(record)))
    ordered = {key: tuple(v for _, v in sorted(values)) for key, values in cells.items()}
    return RobustnessMap(tuple(sorted(set(labels))), tuple(rates), ordered)


def _rate(record: Record) -> float:
    return float(dict(settings(record.spec)).get("lr", 0.0))


def row_labels(records: Sequence[Record], shown: Sequence[str] | None = None) -> list[str]:
    """A label per record: optimiser, and every setting but rate and seed that differs.

    shown: settings that are named in place of these; a retired one is 0 where it is not used.
    """
    named = _varying(records) if shown is None else shown
    several_systems = len({r.spec.system.name for r in records}) > 1
    labels = []
    for record in records:
        spec = record.spec
        unused = dict.fromkeys(RETIRED, 0.0) if shown and spec.optimiser.needs_paths else {}
        chosen = {**unused, **dict(settings(spec))}
        parts = [spec.system.title] if several_systems else []
        parts.append(spec.optimiser.title)
        parts += [_setting(name, chosen[name]) for name in named if name in chosen]
        labels.append(", ".join(parts))
    return labels


def _varying(records: Sequence[Record]) -> list[str]:
    """Settings that differ between runs of one system and optimiser; names tell the rest apart."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for record in records:
        for name, value in settings(record.spec):
            key = (name, record.spec.system.name, record.spec.optimiser.name)
            found.setdefault(key, set()).add(str(value))
    ignored = ("lr", "seed", "paper_ref")
    varying = (name for (name, *_), values in found.items() if len(values) > 1)
    return list(dict.fromkeys(name for name in varying if name not in ignored))


def _setting(name: str, value: object) -> str:
    if name == "unbalanced":
        return "balanced" if value == 1.0 else f"scaled by up to {value:g}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def as_table(found: RobustnessMap) -> Table:
    """For the terminal: solved / stalled / diverged of all in each cell."""
    table = Table(title="solved / stalled / diverged", title_justify="left")
    table.add_column("")
    for rate in found.rates:
        table.add_column(f"lr {rate:g}", justify="right")
    table.add_column("all", justify="right")
    for row in found.rows:
        cells = [_shown(found.counts(row, rate)) for rate in found.rates]
        table.add_row(row, *cells, _shown(found.counts(row)))
    return table


def _shown(counts: dict[Verdict, int]) -> Text:
    if not sum(counts.values()):
        return Text()
    colours = {"solved": "green", "stalled": "yellow", "diverged": "red"}
    return Text(" / ").join(Text(str(n), style=colours[v] if n else "") for v, n in counts.items())

"""Tables that set the paper's figures beside ours, and curves, from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pathsgd_lab.flags import command_of
from pathsgd_lab.report.footnotes import Footnotes, notes_of
from pathsgd_lab.report.model import Entry, FigureData, Series, Source, TableData, run_facts
from pathsgd_lab.report.robustness import verdict
from pathsgd_lab.report.select import best_group, spread
from pathsgd_lab.run.record import Point, Record
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.sweep.results import Filed

COLUMNS = (
    "system", "paper", "ours", "difference", "seeds", "solved / stalled / diverged",
    "learning rate", "steps",
    "seconds of one core", "ms per step", "command",
)  # fmt: skip


@dataclass(frozen=True)
class ComparisonRow:
    """A row of a comparison: what the paper says, and which runs answer."""

    label: str
    paper: float | str | None
    """The paper's figure, or its words where it gives no number."""
    wanted: Callable[[RunSpec], bool]


@dataclass(frozen=True)
class Style:
    """How a table's figures are written."""

    digits: int = 2
    factor: float = 1.0
    """Applied to our metric to get the paper's unit."""


def comparison(
    title: str,
    rows: Sequence[ComparisonRow],
    filed: Sequence[Filed],
    style: Style,
    caption: str = "",
    tried: Sequence[Filed] | None = None,
) -> TableData:
    """One line per row: the method's best learning rate by validation, its test metric over seeds.

    tried: all runs, where ``filed`` are those that earlier, shorter ones chose the rates of; None:
    ``filed`` are all.
    """
    records = [f.record for f in filed]
    chosen = [[r for r in records if row.wanted(r.spec)] for row in rows]
    groups = [best_group(found) if found else [] for found in chosen]
    footnotes = Footnotes()
    lines = []
    for row, group in zip(rows, groups, strict=True):
        grid = [f.record for f in (filed if tried is None else tried) if row.wanted(f.record.spec)]
        marks = footnotes.marks(notes_of(group, grid, groups)) if group else ""
        lines.append(_line(row, group, style, marks))
    return TableData(title, COLUMNS, tuple(lines), footnotes.below(caption))


def _line(
    row: ComparisonRow, group: Sequence[Record], style: Style, marks: str
) -> tuple[Entry, ...]:
    paper = (
        row.paper if isinstance(row.paper, str) else "—" if row.paper is None else f"{row.paper:g}"
    )
    if not group:
        return (Entry(row.label), Entry(paper), *(Entry("—") for _ in COLUMNS[2:]))
    keys = tuple(record.hash for record in group)
    found = spread([style.factor * record.test for record in group])
    difference = "—"
    if isinstance(row.paper, (int, float)) and math.isfinite(found.mean):
        difference = f"{found.mean - row.paper:+.{style.digits}f}"
    verdicts = [verdict(record) for record in group]
    counts = " / ".join(str(verdicts.count(v)) for v in ("solved", "stalled", "diverged"))
    has_target = any(record.spec.target is not None for record in group)
    step = spread([1e3 * record.profile["step"] / record.steps for record in group if record.steps])
    return (
        Entry(row.label),
        Entry(paper),
        Entry(f"{found.text(style.digits)} {marks}".strip(), keys),
        Entry(difference, keys),
        Entry(str(len(group))),
        Entry(counts if has_target or "diverged" in verdicts else "—"),
        Entry(_rate(group[0].spec)),
        Entry(f"{spread([float(r.steps) for r in group]).mean:.0f}"),
        Entry(f"{spread([r.cpu_seconds for r in group]).mean:.0f}"),
        Entry(f"{step.mean:.1f}"),
        Entry(command_of(group[0].spec)),
    )


def _rate(spec: RunSpec) -> str:
    rate = dict(settings(spec)).get("lr")
    return "—" if rate is None else f"{rate:g}"


X = Literal["epoch", "cpu_seconds", "step"]
X_LABELS = {"epoch": "epochs", "cpu_seconds": "seconds of one core", "step": "steps"}


def curves(
    title: str,
    rows: Sequence[ComparisonRow],
    filed: Sequence[Filed],
    *,
    y_label: str,
    x: X = "cpu_seconds",
    y: Callable[[Point], float] = lambda point: point.metrics["valid"],
    log_y: bool = False,
    caption: str = "",
) -> FigureData:
    """A line per row: the median run of the group that the table shows."""
    series = []
    for index, row in enumerate(rows):
        records = [f.record for f in filed if row.wanted(f.record.spec)]
        if records:
            group = sorted(best_group(records), key=lambda record: record.test)
            points = group[len(group) // 2].curve
            xs = tuple(float(getattr(point, x)) for point in points)
            series.append(Series(row.label, xs, tuple(y(point) for point in points), colour=index))
    return FigureData(title, X_LABELS[x], y_label, tuple(series), log_y, caption=caption)


def sources(filed: Sequence[Filed]) -> tuple[Source, ...]:
    """The records of training runs behind a section."""
    return tuple(
        Source(f.record.hash, f.path, command_of(f.record.spec), run_facts(f.record)) for f in filed
    )


def share_of_gap(plain: float, path: float, gated: float) -> float:
    """Per cent of the gap between the plain and the gated net that path normalisation closes."""
    return 100.0 * (plain - path) / (plain - gated)

"""What a report is made of, before it is drawn: plain values that a page and a picture share."""

from __future__ import annotations

from dataclasses import dataclass, field

from pathsgd_lab.report.robustness import RobustnessMap
from pathsgd_lab.run.record import Record

# Okabe and Ito's eight colours, told apart by colour-blind readers too (yellow last: it is hard to
# see on white).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
VERDICT_COLOURS = {"solved": "#009E73", "stalled": "#E69F00", "diverged": "#D55E00"}
UNKNOWN_COLOUR = "#EEEEEE"


@dataclass(frozen=True)
class Entry:
    """One entry of a table: what it says, and the keys of the records it was made from."""

    text: str
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableData:
    """A table; rows are as long as ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a figure."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    colour: int | None = None
    """Index into the palette, for lines that belong together; None: the next one."""


@dataclass(frozen=True)
class FigureData:
    """Lines over a common axis."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_y: bool = False
    log_x: bool = False
    caption: str = ""


@dataclass(frozen=True)
class MapData:
    """A robustness map with its title."""

    title: str
    found: RobustnessMap
    caption: str = ""


@dataclass(frozen=True)
class HeatData:
    """Numbers by row and column, to be shown as colours; None where there is none."""

    title: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Source:
    """A record as the page shows it: where it lies and what it says."""

    key: str
    path: str
    """Relative to the results directory."""
    command: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper, or one sweep."""

    name: str
    title: str
    text: str
    tables: tuple[TableData, ...] = ()
    figures: tuple[FigureData, ...] = ()
    maps: tuple[MapData, ...] = ()
    sources: tuple[Source, ...] = field(default=())


def run_facts(record: Record) -> tuple[tuple[str, str], ...]:
    """What the page says of a run."""
    final = ", ".join(f"{split} {value:.6g}" for split, value in record.metrics.items()) or "none"
    machine = record.machine
    return (
        ("outcome", record.outcome + (f" ({record.detail})" if record.detail else "")),
        (record.spec.task.metric, final),
        (
            "steps",
            f"{record.steps} ({record.epochs:.3g} epochs or batches), best at {record.best_step}",
        ),
        ("seconds", f"{record.cpu_seconds:.1f} of one processor, {record.seconds:.1f} on the wall"),
        (
            "machine",
            f"{machine.cpu}, {machine.cores} cores, {machine.threads} thread(s) used, "
            f"{machine.system}",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("commit", record.commit or "unknown"),
        ("started", record.started),
    )

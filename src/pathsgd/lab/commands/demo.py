"""``pathsgd demo``: about two minutes on two cores."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathsgd.lab import flags
from pathsgd.lab.commands.common import RUNS, make_console
from pathsgd.lab.commands.reproduce import as_rich
from pathsgd.lab.demo import INTRODUCTION, TITLE, demo_section, demo_specs
from pathsgd.lab.display import SweepDisplay
from pathsgd.lab.record import read_record, write_text
from pathsgd.lab.report.collect import filed_records
from pathsgd.lab.report.page import page
from pathsgd.lab.sweep import Places, RunCell, run_cells


@dataclass(frozen=True)
class DemoOptions:
    """The same plain ReLU RNN on the adding problem by SGD, Adam and the path optimisers.

    Each trains from a balanced start and from the same function badly scaled, two runs at a time with one thread
    each, about two minutes on two cores; then a table, and a page that needs no network.
    """

    out: Path = RUNS / "demo"
    """Directory for records and the page; what an earlier demo left there is replaced."""
    length: int = 100
    """T: steps per sequence."""
    steps: int = 5000
    """Training steps per run."""
    seed: int = 0
    """Another draw of start and data."""
    jobs: int = 2
    """Processes at a time."""


def main(arguments: Sequence[str]) -> int:
    """Parse, train, show."""
    options = flags.parse(DemoOptions, arguments, "pathsgd demo")
    console = make_console()
    places = Places(options.out / "records", options.out / "work")
    for directory in (places.results, places.work):
        shutil.rmtree(directory, ignore_errors=True)
    cells = [RunCell(spec) for spec in demo_specs(options.length, options.steps, options.seed)]
    console.print(f"[bold]{TITLE}[/bold]\n{INTRODUCTION}\n")
    display = SweepDisplay(cells, places, console)
    with display.showing():
        ended = run_cells(cells, places, jobs=options.jobs, on_done=display.done)
    section = demo_section(filed_records(options.out, "records", read_record))
    for table in section.tables:
        console.print(as_rich(table))
    report = options.out / "report.html"
    write_text(report, page(TITLE, INTRODUCTION, [section]))
    console.print(f"{display.summary()}\npage: {report}", highlight=False)
    return 1 if any(done.outcome in ("failed", "killed") for done in ended) else 0

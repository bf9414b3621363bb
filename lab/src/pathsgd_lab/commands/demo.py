"""``pathsgd demo``: about two minutes on two cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathsgd_lab import flags
from pathsgd_lab.commands.cells import CellOptions, exit_code, run_with_display
from pathsgd_lab.commands.common import RUNS, as_rich, make_console
from pathsgd_lab.files import remove_tree, write_text
from pathsgd_lab.report.page import page
from pathsgd_lab.studies.demo import INTRODUCTION, TITLE, demo_section, demo_specs
from pathsgd_lab.sweep.cells import Places, RunCell
from pathsgd_lab.sweep.results import RunTable


@dataclass(frozen=True)
class DemoOptions:
    """The same plain ReLU RNN on the adding problem by SGD, Adam and the path optimisers.

    Each trains from a balanced start and from the same function badly scaled, two runs at a time
    with one thread each, about two minutes on two cores; then a table, and a page that needs no
    network.
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
    results = RunTable(options.out / "records")
    places = Places(results.folder, options.out / "work")
    cells = [RunCell(spec) for spec in demo_specs(options.length, options.steps, options.seed)]
    results.pack(without={cell.key for cell in cells})
    for cell in cells:  # only what this demo makes: the folder may be anybody's
        remove_tree(places.marker(cell).parent)
    console.print(TITLE, style="bold")
    console.print(f"{INTRODUCTION}\n")
    ended = run_with_display(
        cells, CellOptions(work=places.work, jobs=options.jobs), results, console
    )
    section = demo_section(
        [filed for key, filed in results.finished().items() if key in {c.key for c in cells}]
    )
    for table in section.tables:
        console.print(as_rich(table))
        console.print(f"{table.caption}\n", highlight=False)
    report = options.out / "report.html"
    write_text(report, page(TITLE, INTRODUCTION, [section]))
    console.print(f"page: {report}", highlight=False)
    return exit_code(ended)

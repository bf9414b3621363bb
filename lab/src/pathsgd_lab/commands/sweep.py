"""``pathsgd sweep TASK SYSTEM [OPTIMISER] --grid ...``: many runs in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from pathsgd_lab import flags
from pathsgd_lab.commands.cells import CellOptions, exit_code, run_with_display
from pathsgd_lab.commands.common import RUNS, choices_help, make_console, wants_general_help
from pathsgd_lab.errors import UsageError
from pathsgd_lab.report.pictures import robustness_picture
from pathsgd_lab.report.robustness import as_table, robustness_map
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.sweep import grid
from pathsgd_lab.sweep.cells import Done, RunCell
from pathsgd_lab.sweep.results import RunTable

USAGE = (
    "pathsgd sweep TASK SYSTEM [OPTIMISER] [flags] --grid name=value,value ..., or with a SPEC.json"
)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(CellOptions):
    """Train a grid of runs, one process per core with one thread each.

    Every run is made once: what is in the table of runs already is not run again, so the same
    command goes on after an interruption. At the end comes a map of the runs that solve, stall or
    diverge, as a table and a picture.
    """

    run: Annotated[RunSpec, tyro.conf.arg(name="")]
    grid: tuple[str, ...] = ()
    """Axes such as lr=1e-3,3e-3 seed=0..4 optimiser=adam,path-adam unbalanced=1,100."""
    results: Path = RUNS / "sweep"
    """Directory for the table of runs, and the picture."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run, show the map."""
    names, words = flags.split_names(arguments)
    if wants_general_help(names, words):
        print(choices_help(USAGE, "Train a grid of runs in parallel, each once."))
        return 0
    spec = flags.named_spec(names, USAGE)
    options = flags.parse(
        SweepOptions, words, f"pathsgd sweep {' '.join(names)}", SweepOptions(run=spec)
    )
    if not options.grid:
        raise UsageError("a sweep needs a grid: add --grid lr=1e-3,3e-3 seed=0,1,2")
    specs = grid.runs_of(options.run, grid.parse_grid(options.grid))
    console = make_console()
    results = RunTable(options.results)
    ended = run_with_display([RunCell(s) for s in specs], options, results, console)
    show_map(ended, results, console)
    return exit_code(ended)


def show_map(ended: list[Done], results: RunTable, console: Console) -> None:
    """The robustness map of the cells that have a record."""
    known = results.finished()
    records = [known[done.key].record for done in ended if done.key in known]
    if not records:
        return
    found = robustness_map(records)
    console.print(as_table(found))
    picture = results.folder / "robustness.png"
    robustness_picture(found, picture)
    console.print(f"runs in {results.folder}, picture {picture}", highlight=False)

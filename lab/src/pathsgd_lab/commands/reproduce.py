"""``pathsgd reproduce NAME --scale laptop``: run a study, such as a table of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from pathsgd_lab import flags
from pathsgd_lab.commands.cells import CellOptions, exit_code, run_with_display
from pathsgd_lab.commands.common import RUNS, as_rich, make_console
from pathsgd_lab.errors import UsageError
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.studies import Scale, Studies, Study
from pathsgd_lab.sweep.cells import Cell, Done
from pathsgd_lab.sweep.grid import parse_grid
from pathsgd_lab.sweep.results import RunTable


@dataclass(frozen=True, kw_only=True)
class StudyOptions(CellOptions):
    """Run a study.

    Records are written as they come, and what has a record is not run again: stop whenever you
    like, and the same command goes on. `pathsgd report` makes a page of them.
    """

    scale: Scale = "laptop"
    """paper: the paper's sizes; laptop: two cores, minutes to hours; smoke: seconds, to see that it
    works."""
    only: tuple[str, ...] = ()
    """Only the cells with these settings, such as system=irnn,lstm length=100."""
    list: bool = False
    """Print the cells and stop: those of every stage, as far as the records so far choose a later
    one's."""
    results: Path | None = None
    """Directory for runs; None: the study's own (laptop), runs/paper/NAME or runs/smoke/NAME."""
    studies: Path | None = None
    """Folder of the studies; None: $PATHSGD_STUDIES, or that of the clone."""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(StudyOptions):
    """Run a study, such as a table or figure of the paper.

    Records are written as they come, and what has a record is not run again: stop whenever you
    like, and the same command goes on. `pathsgd report` makes a page of them.
    """

    name: tyro.conf.Positional[str]
    """Which study."""


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    options = flags.parse(ReproduceOptions, arguments, "pathsgd reproduce")
    return carry_out(options.name, options)


def carry_out(name: str, options: StudyOptions) -> int:
    """Run a study stage by stage, show its tables."""
    studies = Studies(options.studies)
    study, wanted = studies[name], parse_grid(options.only)
    folder = options.results or default_results(studies, name, options.scale)
    results = RunTable(folder, study.read)
    console = make_console()
    if not study.stages:
        raise UsageError(f"{name} has nothing to run: see {studies.folder / name / 'README.md'}")
    if options.list:
        return show_cells(study, options.scale, wanted, results)
    duration, of_paper = study.duration[options.scale], study.paper_ref and f" ({study.paper_ref})"
    console.print(f"{study.title}{of_paper}, {options.scale} scale: about {duration}")
    ended: list[Done] = []
    for number, stage in enumerate(study.stages, 1):
        cells = chosen(stage(options.scale, [filed.record for filed in results.filed()]), wanted)
        if cells:
            console.print(
                f"stage {number} of {len(study.stages)}: {len(cells)} cells", highlight=False
            )
            ended += run_with_display(cells, options, results, console)
    if not ended:
        raise UsageError(f"no cell of {name} has {' '.join(options.only)}; see --list")
    show(study, results, console)
    return exit_code(ended)


def show_cells(study: Study, scale: Scale, wanted: dict[str, list[str]], results: RunTable) -> int:
    """Print every cell that could run now, once; a training run as its command."""
    records = [filed.record for filed in results.filed()]
    found = {
        cell.key: cell for stage in study.stages for cell in chosen(stage(scale, records), wanted)
    }
    known = results.finished()
    for key, cell in found.items():
        print(describe(cell) + ("  # has a record" if key in known else ""))
    return 0


def default_results(studies: Studies, name: str, scale: Scale) -> Path:
    """Where runs go: those of the laptop's scale are the study's."""
    return studies.results / name if scale == "laptop" else RUNS / scale / name


def chosen(cells: Sequence[Cell], wanted: dict[str, list[str]]) -> list[Cell]:
    """The cells that have all the settings asked for."""
    return [
        cell
        for cell in cells
        if all(facts(cell).get(name) in values for name, values in wanted.items())
    ]


def facts(cell: Any) -> dict[str, str]:
    """A cell's settings as text."""
    spec = cell.spec
    if isinstance(spec, RunSpec):
        named = {
            "task": spec.task.name,
            "system": spec.system.name,
            "optimiser": spec.optimiser.name,
        }
        return {**named, **{name: _text(value) for name, value in settings(spec)}}
    return {name: _text(value) for name, value in vars(spec).items()}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(cell: Any) -> str:
    """A cell in one line."""
    return flags.command_of(cell.spec) if isinstance(cell.spec, RunSpec) else cell.slug


def show(study: Study, results: RunTable, console: Console) -> None:
    """The study's tables, as far as there are records."""
    for table in study.section(results.filed()).tables:
        console.print(as_rich(table))
    console.print(
        f"runs in {results.folder}; `pathsgd report` makes a page of them", highlight=False
    )

"""``pathsgd reproduce NAME --scale laptop``: a table or figure of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console

from pathsgd_lab import flags
from pathsgd_lab.commands.cells import CellOptions, exit_code, run_with_display
from pathsgd_lab.commands.common import RUNS, as_rich, make_console
from pathsgd_lab.errors import UsageError
from pathsgd_lab.experiments import EXPERIMENTS, Experiment, Scale
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.sweep.cells import Cell, Done
from pathsgd_lab.sweep.grid import parse_grid
from pathsgd_lab.sweep.results import ResultsFolder

if TYPE_CHECKING:
    Name = str
else:
    Name = tyro.extras.literal_type_from_choices(EXPERIMENTS)


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(CellOptions):
    """Run an experiment.

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
    """Directory for records; None: results/NAME (laptop), results/NAME-paper, or
    runs/smoke/NAME."""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(ExperimentOptions):
    """Run a table or figure of the paper.

    Records are written as they come, and what has a record is not run again: stop whenever you
    like, and the same command goes on. `pathsgd report` makes a page of them.
    """

    name: tyro.conf.Positional[Name]
    """Which table or figure."""


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    options = flags.parse(ReproduceOptions, arguments, "pathsgd reproduce")
    return carry_out(options.name, options)


def carry_out(name: str, options: ExperimentOptions) -> int:
    """Run an experiment stage by stage, show the table."""
    experiment = EXPERIMENTS[name]
    wanted = parse_grid(options.only)
    results = ResultsFolder(
        options.results or default_results(name, options.scale), experiment.read
    )
    console = make_console()
    if options.list:
        return show_cells(experiment, options.scale, wanted, results)
    duration = experiment.duration[options.scale]
    console.print(
        f"{experiment.title} ({experiment.paper_ref}), {options.scale} scale: about {duration}"
    )
    ended: list[Done] = []
    for number, stage in enumerate(experiment.stages, 1):
        cells = chosen(stage(options.scale, [filed.record for filed in results.filed()]), wanted)
        if cells:
            console.print(
                f"stage {number} of {len(experiment.stages)}: {len(cells)} cells", highlight=False
            )
            ended += run_with_display(cells, options, results, console)
    if not ended:
        raise UsageError(f"no cell of {name} has {' '.join(options.only)}; see --list")
    show(experiment, results, console)
    return exit_code(ended)


def show_cells(
    experiment: Experiment, scale: Scale, wanted: dict[str, list[str]], results: ResultsFolder
) -> int:
    """Print every cell that could run now, once; a training run as its command."""
    records = [filed.record for filed in results.filed()]
    found = {
        cell.key: cell
        for stage in experiment.stages
        for cell in chosen(stage(scale, records), wanted)
    }
    known = results.finished()
    for key, cell in found.items():
        print(describe(cell) + ("  # has a record" if key in known else ""))
    return 0


def default_results(name: str, scale: Scale) -> Path:
    """Where records go: only the laptop's and the paper's are for keeping."""
    if scale == "smoke":
        return RUNS / "smoke" / name
    return Path("results") / (name if scale == "laptop" else f"{name}-paper")


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


def show(experiment: Experiment, results: ResultsFolder, console: Console) -> None:
    """The experiment's tables, as far as there are records."""
    for table in experiment.section(results.filed()).tables:
        console.print(as_rich(table))
    console.print(
        f"records in {results.path}; `pathsgd report` makes a page of them", highlight=False
    )

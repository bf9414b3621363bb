"""Studies that are sweeps: commands say what is run, a table of methods is shown."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from pathsgd_lab import flags
from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.sweeps import method_table, sweep_section
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.pages import NOT_ON_A_PAGE
from pathsgd_lab.studies.study import Scale, Study, cells
from pathsgd_lab.sweep import grid
from pathsgd_lab.sweep.cells import Cell
from pathsgd_lab.sweep.results import Filed


def sweep_study(
    name: str, title: str, *commands: str, duration: str = "", shown: Sequence[str] | None = None
) -> Study:
    """A study of some sweeps.

    commands: what follows `pathsgd sweep`: TASK SYSTEM [OPTIMISER] [flags] --grid name=value ...
    shown: settings that name the rows of its table; None: those that differ within a method.
    """
    return Study(
        name,
        title,
        section=partial(sweep_section, name, shown=shown),
        stages=(partial(_stage, commands),) if commands else (),
        duration={"laptop": duration, "paper": duration, "smoke": duration},
        tables={f"runs-{name}": partial(_methods, shown)},
    )


def _stage(commands: Sequence[str], scale: Scale, records: Sequence[Any]) -> list[Cell]:
    """Every command's runs; sweeps have one size only."""
    return [cell for command in commands for cell in cells(runs_of(command), "")]


def runs_of(command: str) -> list[RunSpec]:
    """The runs that a command of ``pathsgd sweep`` stands for."""
    given, _, axes = command.partition(" --grid ")
    names, words = flags.split_names(shlex.split(given))
    base = flags.with_flags(flags.named_spec(names, command), words, "pathsgd sweep")
    return grid.runs_of(base, grid.parse_grid(shlex.split(axes)))


def _methods(shown: Sequence[str] | None, filed: Sequence[Filed]) -> str:
    return markdown(method_table(filed, shown), NOT_ON_A_PAGE)

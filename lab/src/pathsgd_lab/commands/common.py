"""What several subcommands share: options of a run, and the lines they print."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pathsgd_lab.flags import command_of
from pathsgd_lab.report.model import TableData
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import REGISTRIES

RUNS = Path("runs")
NOT_IN_TERMINAL = ("command", "steps", "seconds of one core", "ms per step")


def first_sentence(kind: type[Any]) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]


def choices_help(usage: str, description: str) -> str:
    """Help for a command that begins with the names of a task, a system and an optimiser."""
    parts = [f"usage: {usage}", "", description, ""]
    for kind, registry in REGISTRIES.items():
        width = max(map(len, registry))
        parts.append(f"{kind.capitalize()}s:")
        parts += [
            f"  {name:<{width}}  {first_sentence(choice)}" for name, choice in registry.items()
        ]
        parts.append("")
    command = usage.split(" TASK")[0]
    parts.append(
        f"Every setting has a flag: see `{command} TASK SYSTEM [OPTIMISER] --help`, for example"
    )
    parts.append(
        f"`{command} adding rnn_path path-adam --help`. Without OPTIMISER a system uses its own."
    )
    return "\n".join(parts)


def wants_general_help(names: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether help was asked for before a task and a system were named."""
    return not names and bool({"-h", "--help"} & set(flags) or not flags)


def make_console() -> Console:
    """The terminal as it is; wide lines where the output goes to a file or a pipe.

    No text is read for marks such as [bold]: names of runs, files and modules are shown as they
    are.
    """
    console = Console(soft_wrap=True, markup=False)
    return console if console.is_terminal else Console(soft_wrap=True, markup=False, width=140)


def figure(value: float) -> str:
    """A metric in a few digits."""
    return f"{value:.4g}"


def show_record(record: Record, where: Path | None, console: Console) -> None:
    """The end of a run in a small table."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    metric = record.spec.task.metric
    final = (
        ", ".join(f"{split} {figure(value)}" for split, value in record.metrics.items()) or "none"
    )
    table.add_row(
        "outcome",
        Text.assemble((record.outcome, "bold"), f" ({record.detail})" if record.detail else ""),
    )
    table.add_row(
        metric,
        f"{final} (parameters of step {record.best_step}; chance "
        f"{figure(record.spec.task.chance)})",
    )
    table.add_row(
        "work",
        f"{record.steps} steps, {record.cpu_seconds:.1f} s of one processor, {record.parameters} "
        "parameters",
    )
    total = sum(record.profile.values()) or 1.0
    table.add_row(
        "time in",
        ", ".join(f"{part} {100 * s / total:.1f} %" for part, s in record.profile.items()),
    )
    table.add_row("command", command_of(record.spec))
    if where is not None:
        table.add_row("record", str(where))
    console.print(table)


def as_rich(data: TableData) -> Table:
    """A table for the terminal; the page has all its columns."""
    kept = [i for i, name in enumerate(data.columns) if name not in NOT_IN_TERMINAL]
    table = Table(*(data.columns[i] for i in kept), title=data.title, title_justify="left")
    for row in data.rows:
        table.add_row(*(row[i].text for i in kept))
    return table

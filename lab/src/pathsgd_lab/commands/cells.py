"""Shared by the commands that run many cells: where cells run, and the live display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pathsgd_lab.commands.common import RUNS
from pathsgd_lab.sweep.cells import Cell, Done, Places
from pathsgd_lab.sweep.cluster import ClusterKind
from pathsgd_lab.sweep.display import SweepDisplay
from pathsgd_lab.sweep.jobs import run_cells
from pathsgd_lab.sweep.results import RunTable


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """Where cells run, and where they leave their files."""

    work: Path = RUNS / "work"
    """Directory for logs and checkpoints of runs under way."""
    jobs: int | None = None
    """Processes at a time; None: one per core."""
    backend: ClusterKind = "loky"
    """Where cells run: processes here (loky), or the workers of a Dask or Ray cluster."""
    address: str | None = None
    """Address of the cluster; None: start one on this machine."""
    data_dir: Path | None = None
    """Where the data lies; None: $PATHSGD_DATA, or the user's cache directory."""


def run_with_display(
    cells: Sequence[Cell], options: CellOptions, results: RunTable, console: Console
) -> list[Done]:
    """Run the cells with a live display and a last line that counts them."""
    display = SweepDisplay(cells, Places(results.folder, options.work), console)
    with display.showing():
        ended = run_cells(
            cells,
            results,
            options.work,
            backend=options.backend,
            jobs=options.jobs,
            address=options.address,
            data_dir=options.data_dir,
            on_done=display.done,
        )
    console.print(display.summary(), highlight=False)
    return ended


def exit_code(ended: Sequence[Done]) -> int:
    """1 if a cell has no result, through an error of its own or because its worker was killed."""
    return 1 if any(done.outcome in ("failed", "killed") for done in ended) else 0

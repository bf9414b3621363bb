"""What a sweep shows while it goes on: a line per finished cell, and the cells under way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pathsgd_lab.run.listeners import StatusFile
from pathsgd_lab.sweep.cells import Cell, Done, Places

COLOURS = {
    "solved": "green",
    "finished": "green",
    "known": "dim",
    "diverged": "red",
    "failed": "red",
    "killed": "red",
}


class SweepDisplay:
    """Follows the cells of a sweep through their files, wherever they run."""

    def __init__(self, cells: Sequence[Cell], places: Places, console: Console) -> None:
        self.cells = {cell.key: cell for cell in cells}
        self.places, self.console = places, console
        self.left = dict(self.cells)
        self.counts: dict[str, int] = {}
        self.start = time.monotonic()

    @contextlib.contextmanager
    def showing(self) -> Iterator[SweepDisplay]:
        """Draw until the sweep is over; without a terminal print a line for each finished cell."""
        if not self.console.is_terminal:
            yield self
            return
        with Live(
            get_renderable=self.render, console=self.console, refresh_per_second=4, transient=True
        ):
            yield self

    def done(self, done: Done) -> None:
        """A cell has ended."""
        self.left.pop(done.key, None)
        self.counts[done.outcome] = self.counts.get(done.outcome, 0) + 1
        if done.outcome != "known":
            colour = COLOURS.get(done.outcome, "yellow")
            detail = f"  {done.detail}" if done.detail else ""
            number = f"{len(self.cells) - len(self.left)}/{len(self.cells)}"
            line = Text.assemble(
                f"{number:>9}  ", (f"{done.outcome:<9}", colour), f"  {done.slug}{detail}"
            )
            self.console.print(line, highlight=False)

    def render(self) -> RenderableType:
        """The cells under way, and the count of all."""
        table = Table(box=None, padding=(0, 1), show_header=False)
        for cell in list(self.left.values()):
            if not self.places.marker(cell).exists():
                continue
            status = StatusFile.read(self.places.work / cell.slug / "status.json")
            if status is None:
                table.add_row(cell.slug, "", "starting")
                continue
            metric = "" if status.metric is None else f"valid {status.metric:.4g}"
            bar = ProgressBar(total=1.0, completed=status.progress, width=20)
            table.add_row(cell.slug, bar, f"step {status.step}", f"loss {status.loss:.4g}", metric)
        return Group(table, Text(self.summary(), style="bold"))

    def summary(self) -> str:
        """One line: how many cells ended how."""
        ended = (
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))
            or "none ended yet"
        )
        seconds = time.monotonic() - self.start
        done, total = len(self.cells) - len(self.left), len(self.cells)
        return f"{done} of {total} cells: {ended}; {seconds:.0f} s"

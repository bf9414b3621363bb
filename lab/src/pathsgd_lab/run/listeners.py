"""Who watches a run: the progress bar, the status file that a sweep reads, TensorBoard.

The trainer calls a listener at most once per check (every twenty steps or so), never in between,
and listeners look at the clock before they do anything, so that watching costs next to nothing.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pathsgd_lab.files import UNREADABLE, write_text
from pathsgd_lab.run.record import Point, Record, plain
from pathsgd_lab.run.spec import RunSpec


@dataclass(frozen=True)
class Status:
    """Where a run stands."""

    step: int
    progress: float
    """Share of the budget used, 0 to 1."""
    loss: float
    """Running training loss."""
    length: int
    """Steps per sequence at present."""
    metric: float | None
    """Last validation metric."""
    cpu_seconds: float
    pid: int


class Listener(AbstractContextManager["Listener"]):
    """Does nothing; what a run may tell."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to close."""

    def on_start(self, step: int) -> None:
        """The run begins, or goes on after ``step`` steps."""

    def on_status(self, status: Status) -> None:
        """Some steps were made."""

    def on_point(self, point: Point) -> None:
        """The model was evaluated."""

    def on_end(self, record: Record) -> None:
        """The run has ended."""


class ProgressBar(Listener):
    """A live line in the terminal."""

    def __init__(self, spec: RunSpec, console: Console) -> None:
        self.spec = spec
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.fields[step]}  loss {task.fields[loss]:.4g}{task.fields[more]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            transient=True,
        )
        title = f"{spec.task.name} {spec.system.name} {spec.optimiser.name}"
        self.task = self.progress.add_task(title, total=1.0, step=0, loss=float("nan"), more="")

    def __enter__(self) -> ProgressBar:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()

    def on_status(self, status: Status) -> None:
        """Move the bar; rich redraws it in its own time."""
        more = f"  T {status.length}" if status.length != self.spec.task.length else ""
        if status.metric is not None:
            more += f"  {self.spec.task.metric} {status.metric:.4g}"
        self.progress.update(
            self.task, completed=status.progress, step=status.step, loss=status.loss, more=more
        )

    def on_point(self, point: Point) -> None:
        """One line per evaluation above the bar."""
        figures = "  ".join(f"{split} {value:.5g}" for split, value in point.metrics.items())
        self.progress.console.print(
            f"step {point.step:>7}  epoch {point.epoch:6.2f}  {point.cpu_seconds:7.1f} s  "
            f"train loss {point.train_loss:.5g}  {self.spec.task.metric}: {figures}",
            highlight=False,
        )


class StatusFile(Listener):
    """A small file, rewritten a few times a second, by which a sweep follows the run."""

    INTERVAL = 0.25

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, 0.0

    def on_status(self, status: Status) -> None:
        """Write it if the last time is long enough ago."""
        now = time.monotonic()
        if now - self.last >= self.INTERVAL:
            self.last = now
            write_text(self.path, json.dumps(plain(asdict(status))), durable=False)

    @staticmethod
    def read(path: Path) -> Status | None:
        """The status another process wrote last; None before the first."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=Status, strict=False)
        except UNREADABLE:
            return None


class TensorBoard(Listener):
    """Curves for TensorBoard: loss, rate, metrics and, where measured, geometry."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_start(self, step: int) -> None:
        """Open the files of TensorBoard."""
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run goes over the steps after its checkpoint once more: TensorBoard forgets the
        # first time.
        self.writer = SummaryWriter(str(self.directory), purge_step=step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is still in memory."""
        self.writer.close()

    def on_status(self, status: Status) -> None:
        """Running loss and length."""
        self.writer.add_scalar("train/running_loss", status.loss, status.step)
        self.writer.add_scalar("train/length", status.length, status.step)

    def on_point(self, point: Point) -> None:
        """Metrics."""
        self.writer.add_scalar("train/loss", point.train_loss, point.step)
        self.writer.add_scalar("train/lr_factor", point.lr_factor, point.step)
        for name, value in {**point.metrics, **point.geometry}.items():
            self.writer.add_scalar(f"evaluation/{name}", value, point.step)

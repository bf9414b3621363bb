"""What a sweep is made of: cells, the places of their files, and how they ended.

A cell is anything with a key, a name and a ``run``; a training run is one (``RunCell``).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pathsgd_lab.errors import RecordError
from pathsgd_lab.files import remove
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.listeners import StatusFile
from pathsgd_lab.run.record import FINAL, read_record
from pathsgd_lab.run.spec import RunSpec, spec_hash
from pathsgd_lab.run.train import train


class Cell(Protocol):
    """One job of a sweep."""

    @property
    def key(self) -> str:
        """Equal for equal jobs, whatever version wrote the result."""
        ...

    @property
    def slug(self) -> str:
        """A name for files."""
        ...

    def has_result(self, result: Path) -> bool:
        """Whether the file ``result`` holds what the job gives."""
        ...

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Do the job: write ``result`` in one step, keep files in the directory ``work``; the outcome in a word."""
        ...


@dataclass(frozen=True)
class RunCell:
    """A training run as a cell."""

    spec: RunSpec

    @property
    def key(self) -> str:
        """The spec's hash."""
        return spec_hash(self.spec)

    @property
    def slug(self) -> str:
        """The spec's."""
        return self.spec.slug

    def has_result(self, result: Path) -> bool:
        """Whether this run has ended and left its record there."""
        try:
            record = read_record(result)
        except RecordError:
            return False
        return record.hash == self.key and record.outcome in FINAL

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Train, continuing what an earlier process left; checkpoints go when the record is written."""
        status = StatusFile(RunDirectory(work).status)
        record = train(
            self.spec, work, resume=True, data_dir=data_dir, listeners=[status], summary=result
        )
        remove(checkpoint.paths(work))
        return record.outcome


@dataclass(frozen=True)
class Done:
    """How a cell ended."""

    key: str
    slug: str
    outcome: str
    """A record's outcome, "known" (there was a result before), "failed" (an exception) or "killed" (its worker)."""
    detail: str = ""


@dataclass(frozen=True)
class Places:
    """Directories of a sweep."""

    results: Path
    """One small file per finished cell."""
    work: Path
    """One directory per cell, for logs and checkpoints."""
    sweep: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells the cells of this sweep from those of another one in the same directories."""

    def result(self, cell: Cell) -> Path:
        """The cell's result file."""
        return self.results / f"{cell.slug}.json"

    def marker(self, cell: Cell) -> Path:
        """A file that is there while the cell is being worked on: by which process, for which sweep."""
        return self.work / cell.slug / "running"

    def left_running(self, cell: Cell) -> bool:
        """Whether a worker of this sweep began with the cell and did not come to an end."""
        try:
            return self.marker(cell).read_text("utf-8").split()[1:] == [self.sweep]
        except FileNotFoundError:
            return False

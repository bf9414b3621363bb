"""What a sweep is made of: cells, the places of their files, and how they ended.

A cell is anything with a key, a name and a ``run``; a training run is one (``RunCell``).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pathsgd_lab.files import remove
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.listeners import StatusFile
from pathsgd_lab.run.record import Record, record_from_json
from pathsgd_lab.run.spec import RunSpec, spec_hash
from pathsgd_lab.run.train import train
from pathsgd_lab.sweep.results import RunTable


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

    def read(self, content: Any) -> Any:
        """The record in a line of the table; what it cannot read raises ``RecordError``."""
        ...

    def run(self, work: Path, results: RunTable, data_dir: Path | None) -> str:
        """Do the job and append its record; files of the work in ``work``. The outcome, a word."""
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

    def read(self, content: Any) -> Record:
        """See ``Cell``."""
        return record_from_json(content)

    def run(self, work: Path, results: RunTable, data_dir: Path | None) -> str:
        """Train, continuing what an earlier process left; its files go when the run is filed."""
        run = RunDirectory(work)
        status = StatusFile(run.status)
        record = train(self.spec, work, resume=True, data_dir=data_dir, listeners=[status])
        results.append(record.to_json())
        remove([*checkpoint.paths(work), run.summary])
        return record.outcome


@dataclass(frozen=True)
class Done:
    """How a cell ended."""

    key: str
    slug: str
    outcome: str
    """A record's outcome, "known" (recorded before), "failed" (exception) or "killed" (worker)."""
    detail: str = ""


@dataclass(frozen=True)
class Places:
    """Directories of a sweep."""

    results: Path
    """The table of runs."""
    work: Path
    """One directory per cell, for logs and checkpoints."""
    sweep: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells the cells of this sweep from those of another one in the same directories."""

    def marker(self, cell: Cell) -> Path:
        """A file that exists while the cell is being run: by which process, for which sweep."""
        return self.work / cell.slug / "running"

    def left_running(self, cell: Cell) -> bool:
        """Whether a worker of this sweep began with the cell and did not come to an end."""
        try:
            return self.marker(cell).read_text("utf-8").split()[1:] == [self.sweep]
        except FileNotFoundError:
            return False

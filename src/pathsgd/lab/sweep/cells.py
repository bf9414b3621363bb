"""What a sweep is made of: cells, the places of their files, and how they ended.

A cell is anything with a key, a name and a ``run``; a training run is one (``RunCell``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pathsgd.lab.run import checkpoint
from pathsgd.lab.run.directory import RunDirectory
from pathsgd.lab.run.listeners import StatusFile
from pathsgd.lab.run.spec import RunSpec, spec_hash
from pathsgd.lab.run.train import train


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

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Train, continuing what an earlier process left; checkpoints go when the record is written."""
        status = StatusFile(RunDirectory(work).status)
        record = train(self.spec, work, resume=True, data_dir=data_dir, listeners=[status], summary=result)
        for path in checkpoint.paths(work):
            path.unlink()
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

    def result(self, cell: Cell) -> Path:
        """The cell's result file."""
        return self.results / f"{cell.slug}.json"

    def marker(self, cell: Cell) -> Path:
        """A file that is there while the cell is being worked on."""
        return self.work / cell.slug / "running"

"""The files of one run, and the lock that keeps other processes away from them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pathsgd.lab.errors import RunError
from pathsgd.lab.run import checkpoint
from pathsgd.lab.run.log import RunLog
from pathsgd.lab.run.record import Record, read_record
from pathsgd.lab.run.spec import RunSpec, spec_from_json, spec_hash


class RunDirectory:
    """The files of one run.

    summary: where its record goes; None: into the directory itself.
    """

    def __init__(self, path: Path, summary: Path | None = None) -> None:
        self.path = path
        self.log = RunLog(path / "record.jsonl")
        self.spec_file, self.status = path / "spec.json", path / "status.json"
        self.summary = summary or path / "summary.json"

    @property
    def begun(self) -> bool:
        """Whether a run was started here."""
        return self.spec_file.exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away; a lock dies with its process."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path / "lock", timeout=0):
                yield
        except Timeout:
            raise RunError(
                f"another process is running {self.path}: wait for it, or choose another directory"
            ) from None

    def clear(self) -> None:
        """Forget the run that was here."""
        for path in (self.spec_file, self.summary, self.status, self.log.path, *checkpoint.paths(self.path)):
            path.unlink(missing_ok=True)

    def read_spec(self) -> RunSpec:
        """The spec of the run that was started here."""
        if not self.begun:
            raise RunError(f"{self.path} is not the directory of a run: it has no spec.json")
        return spec_from_json(json.loads(self.spec_file.read_text("utf-8")))

    def finished(self, spec: RunSpec) -> Record | None:
        """The record of this very run, if it has ended here."""
        if not self.summary.exists():
            return None
        record = read_record(self.summary)
        return record if record.hash == spec_hash(spec) else None

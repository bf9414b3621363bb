"""The files of one run, and the lock that keeps other processes away from them.

A new run moves the old one into ``previous`` until it has a checkpoint of its own:

    previous.tmp    files are on their way there; a stop in between is undone by moving them back
    previous        the whole old run
    previous.old    on its way out; what is left of it is removed
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from pathsgd_lab.errors import RecordError, RunError
from pathsgd_lab.files import flush, make_folder, move, remove, remove_tree
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.log import RunLog
from pathsgd_lab.run.record import Record, read_record
from pathsgd_lab.run.spec import RunSpec, read_spec, spec_hash

log = logging.getLogger(__name__)


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = RunLog(path / "record.jsonl")
        self.spec_file, self.status = path / "spec.json", path / "status.json"
        self.summary = path / "summary.json"
        self.previous = path / "previous"

    @property
    def begun(self) -> bool:
        """Whether a run was started here."""
        return self.spec_file.exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other processes, repair what one of them left; a lock ends with its process."""
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_folder(self.path)
        lock = self.path / "lock"
        try:
            with FileLock(lock, timeout=0):
                self._put_right()
                yield
        except Timeout:
            raise RunError(
                f"another process is running {self.path}: wait for it, or choose another directory"
            ) from None
        except BaseException:
            if new and os.listdir(self.path) == [lock.name]:  # nothing came of it: leave no trace
                remove([lock])
                for folder in new:
                    os.rmdir(folder)
            raise

    def _put_right(self) -> None:
        remove(self.path.glob(".*.tmp"))
        unfinished, discarded = self.previous.with_suffix(".tmp"), self.previous.with_suffix(".old")
        if (
            self.previous.is_dir() and not self.begun
        ):  # the new run never began, so the old one is still the run
            os.replace(self.previous, unfinished)
        if unfinished.is_dir():
            move(unfinished.iterdir(), self.path)
            remove_tree(unfinished)
        remove_tree(discarded)

    def set_aside(self) -> None:
        """Make room for a new run: the old one stays in ``previous`` until ``forget_previous``."""
        if self.previous.is_dir():
            remove(
                self._files()
            )  # of a run without a checkpoint, else it would have forgotten the one before it
            return
        files, unfinished = self._files(), self.previous.with_suffix(".tmp")
        if not files:
            return
        make_folder(unfinished)
        move(files, unfinished)
        os.replace(unfinished, self.previous)
        flush(self.path)

    def bring_back(self) -> None:
        """The run that was set aside, wholly or in part, takes its place again."""
        if self.previous.is_dir():
            remove(self._files())
        self._put_right()

    def forget_previous(self) -> None:
        """Remove the run that was set aside, if there is one."""
        if self.previous.is_dir():
            discarded = self.previous.with_suffix(".old")
            os.replace(self.previous, discarded)
            remove_tree(discarded)

    def _files(self) -> list[Path]:
        named = [self.summary, self.spec_file, self.status, self.log.path]
        return [*(path for path in named if path.exists()), *checkpoint.paths(self.path)]

    def read_spec(self) -> RunSpec:
        """The spec of the run that was started here."""
        if not self.begun:
            raise RunError(f"{self.path} is not the directory of a run: it has no spec.json")
        return read_spec(self.spec_file)

    def finished(self, spec: RunSpec) -> Record | None:
        """The record of this very run if it has ended here; an unreadable one is written anew."""
        if not self.summary.exists():
            return None
        try:
            record = read_record(self.summary)
        except RecordError as error:
            log.warning("%s; it is made anew", error)
            return None
        return record if record.hash == spec_hash(spec) else None

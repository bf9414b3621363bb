"""A folder of result files: each read once, damaged ones told of and left out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathsgd_lab.errors import RecordError
from pathsgd_lab.run.record import FINAL, read_record

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filed:
    """A record and the file it was read from."""

    path: str
    """Relative to the directory that holds the folder."""
    record: Any
    """A ``Record``, or a record of the experiment's own kind."""


class ResultsFolder:
    """The records in one folder.

    read: reads one of the files.
    """

    def __init__(self, path: Path, read: Callable[[Path], Any] = read_record) -> None:
        self.path, self.read = path, read
        self._seen: dict[tuple[str, int, int], Filed | None] = {}

    def filed(self) -> list[Filed]:
        """All records there are now, in the order of their names; only files that are new or changed are read."""
        found = {self._identity(path): path for path in sorted(self.path.glob("*.json"))}
        self._seen = {
            key: self._seen[key] if key in self._seen else self._filed(path)
            for key, path in found.items()
        }
        return [filed for filed in self._seen.values() if filed is not None]

    def finished(self) -> dict[str, Filed]:
        """The records of cells that have ended, by key under today's specs."""
        return {f.record.hash: f for f in self.filed() if f.record.outcome in FINAL}

    def _identity(self, path: Path) -> tuple[str, int, int]:
        try:
            status = path.stat()
        except FileNotFoundError:  # a link to nowhere, which reading will tell of
            return path.name, 0, 0
        return path.name, status.st_mtime_ns, status.st_size

    def _filed(self, path: Path) -> Filed | None:
        try:
            return Filed(f"{self.path.name}/{path.name}", self.read(path))
        except RecordError as error:
            _tell_once(str(error))
            return None


@functools.cache
def _tell_once(message: str) -> None:
    """A warning, once for each file, however many tables are made of its folder."""
    log.warning("%s", message)

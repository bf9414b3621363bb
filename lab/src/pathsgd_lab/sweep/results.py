"""The runs of a study or a sweep: one table, one line of JSON a run.

    FOLDER/runs.jsonl       grows while runs are made: each is appended, under a lock, when it ends
    FOLDER/runs.jsonl.gz    what ``pack`` makes of that at the end: one gzip stream, old runs first

A writer that is killed may leave a line without an end.  The next line begins on its own, and the
damaged one is reported with its number and left out.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import logging
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from pathsgd_lab.errors import RecordError
from pathsgd_lab.files import append_text, flush, make_folder, remove, write_file
from pathsgd_lab.run.record import FINAL, record_from_json

log = logging.getLogger(__name__)

Read = Callable[[Any], Any]
"""JSON of one line -> a ``Record``, or a record of the study's own kind."""


@dataclass(frozen=True)
class Filed:
    """A run and where it was read."""

    path: str
    """Folder, file and number of the line."""
    record: Any
    study: str = ""
    """Name of the folder."""


class RunTable:
    """The runs in one folder.

    read: makes a record of a line's JSON.
    """

    def __init__(self, folder: Path, read: Read = record_from_json) -> None:
        self.folder, self.read = folder, read
        self.packed, self.growing = folder / "runs.jsonl.gz", folder / "runs.jsonl"
        self._known: dict[bytes, Filed | None] = {}

    def filed(self) -> list[Filed]:
        """All runs there are now, in the order of their lines; only new lines are parsed."""
        found: dict[bytes, Filed | None] = {}
        for path, number, line in self._lines():
            if line not in found:  # a kill between packing and removing leaves lines twice
                known = line in self._known
                found[line] = self._known[line] if known else self._parsed(path, number, line)
        self._known = found
        return [filed for filed in found.values() if filed is not None]

    def finished(self) -> dict[str, Filed]:
        """The runs that have ended, by their hash under today's settings."""
        return {f.record.hash: f for f in self.filed() if f.record.outcome in FINAL}

    def has(self, key: str) -> bool:
        """Whether the run with this hash has ended and is here; cheaper than ``finished``."""
        wanted = key.encode()
        near = [place for place in self._lines() if wanted in place[2]]
        found = [filed for place in near if (filed := self._parsed(*place)) is not None]
        return any(f.record.hash == key and f.record.outcome in FINAL for f in found)

    def append(self, run: Mapping[str, Any]) -> None:
        """Add a run; when this returns, it is on the disk."""
        make_folder(self.folder)
        with self._locked():
            new = not self.growing.exists()
            cut_short = not new and not _ends_a_line(self.growing)
            append_text(self.growing, "\n" * cut_short + json.dumps(run) + "\n")
            flush(self.growing)
            if new:
                flush(self.folder)

    def pack(self, without: Collection[str] = ()) -> None:
        """Compress what has been appended; damaged lines stay where they are, none is lost.

        without: hashes of runs to leave out.
        """
        if not self.growing.exists() and not (without and self.packed.exists()):
            return
        with self._locked():
            whole: dict[bytes, None] = {}
            damaged = []
            for _, _, line in self._lines(strict=True):
                content = _json(line)
                if content is None:
                    damaged.append(line)
                elif content.get("hash") not in without:
                    whole[line] = None
            text = b"".join(line + b"\n" for line in whole)
            write_file(self.packed, gzip.compress(text, 9, mtime=0))
            if damaged:
                write_file(self.growing, b"".join(line + b"\n" for line in damaged))
            else:
                remove([self.growing])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with FileLock(self.folder / "lock"):
            yield

    def _lines(self, *, strict: bool = False) -> Iterator[tuple[Path, int, bytes]]:
        """File, number and text of every line; ``strict``: a damaged stream is an error."""
        for path, opened in ((self.packed, gzip.open), (self.growing, open)):
            number = 0
            try:
                with opened(path, "rb") as file:  # type: ignore[operator]
                    for number, line in enumerate(file, 1):
                        if text := line.strip():
                            yield path, number, text
            except FileNotFoundError:
                pass
            except (OSError, EOFError, zlib.error) as error:
                message = f"{path} is damaged after line {number}: {error}"
                if strict:
                    raise RecordError(f"{message}; nothing was packed") from error
                _report(message)

    def _parsed(self, path: Path, number: int, line: bytes) -> Filed | None:
        place = f"{self.folder.name}/{path.name}, line {number}"
        try:
            return Filed(place, self.read(msgspec.json.decode(line)), self.folder.name)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RecordError) as error:
            _report(f"{path}, line {number}, cannot be read as a run: {error}")
            return None


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


@functools.cache
def _report(message: str) -> None:
    """A warning, once for each damaged line, however many tables are made of its runs."""
    log.warning("%s", message)

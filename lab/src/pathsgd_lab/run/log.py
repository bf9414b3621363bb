"""The log of a run, one JSON object a line: start, evaluations, promotions, resumptions, end."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pathsgd_lab.files import UNREADABLE, append_text, flush, write_text
from pathsgd_lab.run.record import plain

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """What every line has, whatever else it tells."""

    kind: str
    step: int = 0


class RunLog:
    """The growing log of a run; an object a line, each flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **content: Any) -> None:
        """Append one line."""
        append_text(self.path, json.dumps({"kind": kind, **plain(content)}) + "\n")

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        flush(self.path)

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``: the run goes on from a checkpoint made there."""
        kept = [
            line for line in self.read() if line.get("step", 0) <= step and line["kind"] != "end"
        ]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; a damaged one gives a warning, unless a kill cut the last one short."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        read = [self._line(number, line) for number, line in enumerate(lines[:-1], 1)]
        return [line for line in read if line is not None]

    def _line(self, number: int, text: bytes) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
            msgspec.convert(content, Line)
        except UNREADABLE as error:
            log.warning("%s, line %d is damaged and left out: %s", self.path, number, error)
            return None
        return content

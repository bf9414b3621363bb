"""The growing log of a run: start, evaluations, promotions, resumptions, end, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pathsgd.lab.files import write_text
from pathsgd.lab.run.record import plain


class RunLog:
    """The growing log of a run; an object a line, each flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **content: Any) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **plain(content)}) + "\n")

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``: the run goes on from a checkpoint made there."""
        kept = [line for line in self.read() if line.get("step", 0) <= step and line["kind"] != "end"]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        """All lines; a last one that was torn by a kill is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # what follows the last line end is empty, or torn

"""What the package raises of its own. Wrong values raise ValueError or TypeError, as torch does."""

from __future__ import annotations

from typing import Any


class UnsupportedOperation(RuntimeError):
    """An operation met a path-carrying tensor and no rule says how paths go through it.

    It is raised instead of guessing: a sum over paths that silently skips an operation is wrong.

    operation: its name; where: the module it happened in; advice: what could be done;
    recording: the steps recorded before it, where it was met while recording a model.
    """

    def __init__(self, operation: str, where: str, advice: str, recording: Any = None) -> None:
        self.operation, self.where, self.advice, self.recording = (
            operation,
            where,
            advice,
            recording,
        )
        super().__init__(f"no path rule for `{operation}` in {where}: {advice}")

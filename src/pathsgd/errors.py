"""Exceptions of the package. Wrong values raise ValueError or TypeError, as in torch."""

from __future__ import annotations

from typing import Any


class UnsupportedOperation(RuntimeError):
    """An operation met a tensor with paths, and no rule covers it.

    It is raised instead of guessing: a sum over paths that silently skips an operation is wrong.

    operation: its name. where: the module that called it. advice: what to do instead.
    recording: the steps recorded before it.
    """

    def __init__(self, operation: str, where: str, advice: str, recording: Any = None) -> None:
        self.operation, self.where = operation, where
        self.advice, self.recording = advice, recording
        super().__init__(f"no path rule for `{operation}` in {where}: {advice}")

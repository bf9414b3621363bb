"""Which files of the package a call visits, in the order in which it enters them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pathsgd

ROOT = Path(pathsgd.__file__).parent


def entries(call: Callable[[], Any]) -> list[tuple[str | None, str]]:
    """(calling file, called file) for each call between two files of the package, in order.

    The calling file is the nearest one of the package on the stack: torch may lie between. A
    function made inside another one (a lambda, say) belongs to the code that made it, wherever it
    is called.
    """
    made: list[tuple[str | None, str]] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if (
            event != "call"
            or (called := _file(frame)) is None
            or "<locals>" in frame.f_code.co_qualname
        ):
            return
        caller = frame.f_back
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        calling = None if caller is None else _file(caller)
        if calling != called:
            made.append((calling, called))

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return made


def _file(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return str(Path(name).relative_to(ROOT)) if name.startswith(str(ROOT)) else None

"""The clock of a run, and the interruption that ends a sitting."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any


class Interrupted:
    """Set by the first Ctrl-C or SIGTERM, the second has its usual effect; also by a sweep's end.

    A sweep that is killed cannot tell its workers, which would train on with nobody to wait for
    them.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._parent = (
            os.getppid() if multiprocessing.current_process().name.startswith("Loky") else None
        )

    @property
    def requested(self) -> bool:
        """Whether somebody wants this sitting to end."""
        return self._signalled or (self._parent is not None and os.getppid() != self._parent)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Interrupted]:
        """Handle the signals; not outside the main thread, where Python forbids it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def request(number: int, frame: Any) -> None:
            self._signalled = True
            for each, handler in before.items():
                signal.signal(each, handler)

        for number in before:
            signal.signal(number, request)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Clock:
    """Wall and processor seconds of a run over all its sittings, and what they went into."""

    def __init__(self) -> None:
        self.profile = dict.fromkeys(("data", "step", "evaluation", "checkpoint", "other"), 0.0)
        self._wall, self._cpu = -time.perf_counter(), -time.process_time()

    def seconds(self) -> float:
        """On the wall."""
        return self._wall + time.perf_counter()

    def cpu_seconds(self) -> float:
        """Of this process, all threads."""
        return self._cpu + time.process_time()

    @contextlib.contextmanager
    def measuring(self, part: str) -> Iterator[None]:
        """Count what happens inside under ``part``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.profile[part] += time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Seconds so far."""
        return {"wall": self.seconds(), "cpu": self.cpu_seconds(), "profile": self.profile_now()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from there."""
        self._wall, self._cpu = (
            state["wall"] - time.perf_counter(),
            state["cpu"] - time.process_time(),
        )
        self.profile = dict(state["profile"])

    def profile_now(self) -> dict[str, float]:
        """Seconds by part; what no part claims is ``other``."""
        claimed = sum(v for k, v in self.profile.items() if k != "other")
        return {**self.profile, "other": self.seconds() - claimed}

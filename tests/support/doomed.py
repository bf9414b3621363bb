"""Cells of a sweep that kill (-9) their worker, or the sweep, at their first step.

python -m support.doomed FOLDER SPEC...     a sweep that dies as soon as all its cells train
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from pathsgd_lab.run.spec import spec_from_json
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.jobs import run_cells
from pathsgd_lab.sweep.results import RunTable


def at_every_step(action: Callable[[], None]) -> None:
    register_optimizer_step_post_hook(lambda *_: action())


def deaths(work: Path) -> int:
    """How often a worker died of the cell in this folder."""
    return len(list(work.glob("death-*")))


@dataclass(frozen=True)
class KillsItsWorker(RunCell):
    """Kills its worker the first `times` times, once the cell in the folder `after` has."""

    times: int
    after: Path | None = None

    def run(self, work: Path, results: RunTable, data_dir: Path | None) -> str:
        while self.after is not None and not deaths(self.after):
            time.sleep(0.01)
        if deaths(work) < self.times:
            at_every_step(lambda: self._die(work))
        return super().run(work, results, data_dir)

    def _die(self, work: Path) -> None:
        (work / f"death-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class KillsItsSweep(RunCell):
    """Kills the process that started its worker once all cells of these names train."""

    names: tuple[str, ...]

    def run(self, work: Path, results: RunTable, data_dir: Path | None) -> str:
        sweep = os.getppid()

        def kill() -> None:
            (work / "trains").touch()
            if os.getppid() == sweep and all(
                (work.parent / name / "trains").exists() for name in self.names
            ):
                os.kill(sweep, signal.SIGKILL)

        at_every_step(kill)
        return super().run(work, results, data_dir)


if __name__ == "__main__":
    folder, specs = Path(sys.argv[1]), [spec_from_json(json.loads(text)) for text in sys.argv[2:]]
    cells = [KillsItsSweep(spec, tuple(spec.slug for spec in specs)) for spec in specs]
    run_cells(cells, RunTable(folder / "results"), folder / "work", jobs=len(cells))

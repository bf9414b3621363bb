"""Kill -9 one process after the other that trains the same run.

    python kills.py SPEC SEED KILLS FOLDER

Prints the exit codes of the killed processes, of one that ends the run in FOLDER/disturbed, and of
one that trains it without a kill in FOLDER/calm. A separate program, because training processes are
forked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  torch's optimisers import it: here once, not in every process
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pathsgd_lab.run.provenance import commit
from pathsgd_lab.run.spec import RunSpec, spec_from_json
from pathsgd_lab.run.train import train

CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir")
LATEST = 90
"""The latest moment of a kill, in steps and calls that change the disk since its start."""


def die_at(moment: int) -> None:
    """Kill this process at its `moment`-th step or call that changes the disk."""
    passed = 0

    def another(*_: Any) -> None:
        nonlocal passed
        passed += 1
        if passed == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Any) -> Any:
        return lambda *args, **named: (another(), call(*args, **named))[1]

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    register_optimizer_step_pre_hook(another)


def exit_code(spec: RunSpec, directory: Path, moment: int | None = None) -> int:
    """How a process of its own ends that trains there, or goes on with what is there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if moment is not None:
                die_at(moment)
            train(spec, directory, resume=True, checkpoint_seconds=0.0)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(spec: RunSpec, seed: int, kills: int, folder: Path) -> list[int]:
    moments = random.Random(seed)
    commit()  # remembered: it starts git, whose changes are not those of the run
    disturbed = folder / "disturbed"
    killed = [exit_code(spec, disturbed, moments.randint(1, LATEST)) for _ in range(kills)]
    return [*killed, exit_code(spec, disturbed), exit_code(spec, folder / "calm")]


if __name__ == "__main__":
    words = sys.argv[1:]
    spec = spec_from_json(json.loads(words[0]))
    print(json.dumps(main(spec, int(words[1]), int(words[2]), Path(words[3]))))

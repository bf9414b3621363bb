"""`torchrun ... pathsgd train`: the same run in several processes, each with a batch share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pathsgd_lab import flags
from pathsgd_lab.commands.train import USAGE, TrainOptions
from pathsgd_lab.run.listeners import Listener, Status
from pathsgd_lab.run.record import Record, read_record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.run.together import Together
from pathsgd_lab.run.train import Stopped, train
from support.processes import in_processes

SETTINGS = (
    "train", "adding", "rnn_path", "path-adam", "--length", "6", "--hidden", "8", "--batch-size",
    "8",
    "--eval-every", "20", "--valid-size", "50", "--test-size", "50", "--quiet",
)  # fmt: skip


def run(
    processes: int, directory: Path, steps: int, *more: str
) -> subprocess.CompletedProcess[str]:
    """The command as a user gives it."""
    many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    start = [sys.executable, *(many if processes > 1 else ()), "-m", "pathsgd_lab.cli"]
    words = [*SETTINGS, "--steps", str(steps), "--run-dir", str(directory), *more]
    return subprocess.run([*start, *words], capture_output=True, text=True, check=False)


def record_of(directory: Path) -> Record:
    return read_record(directory / "summary.json")


def test_two_processes_make_the_run_of_one(tmp_path: Path) -> None:
    for processes in (1, 2):
        done = run(processes, tmp_path / str(processes), 40)
        assert done.returncode == 0, done.stderr
    one, two = (record_of(tmp_path / name) for name in ("1", "2"))
    assert one.hash == two.hash and one.steps == two.steps
    for a, b in zip(one.curve, two.curve, strict=True):
        assert a.metrics == pytest.approx(b.metrics, rel=1e-5) and a.train_loss == pytest.approx(
            b.train_loss, rel=1e-5
        )
    assert done.stdout.count("outcome") == 1  # the first process alone tells
    assert sorted(p.name for p in (tmp_path / "1").iterdir()) == sorted(
        p.name for p in (tmp_path / "2").iterdir()
    )
    again = run(2, tmp_path / "2", 40, "--resume")
    assert again.returncode == 0, again.stderr
    assert record_of(tmp_path / "2") == two


class StopsAt(Listener):
    """Interrupts its own process, as a user or a scheduler would, when a step is reached."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_status(self, status: Status) -> None:
        if status.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def spec(batch: int = 8) -> RunSpec:
    words = [*SETTINGS[4:-1], "--steps", "40", "--batch-size", str(batch)]
    start = TrainOptions(run=flags.named_spec(["adding", "rnn_path", "path-adam"], USAGE))
    return flags.parse(TrainOptions, words, "train", start).run


def stopped(directory: Path) -> int:
    """The first of several processes is interrupted: all of them stop at the same step."""
    try:
        train(spec(), directory, listeners=[StopsAt(20)] if dist.get_rank() == 0 else [])
    except Stopped as told:
        return told.step
    return -1


def continued(directory: Path | None) -> list[dict[str, float]]:
    return [point.metrics for point in train(spec(), directory, resume=directory is not None).curve]


def test_a_run_of_two_processes_is_continued_by_one(tmp_path: Path) -> None:
    assert in_processes(2, stopped, tmp_path / "run") == [20, 20]
    (found,), (wanted,) = (
        in_processes(1, continued, tmp_path / "run"),
        in_processes(1, continued, None),
    )
    assert len(found) == len(wanted) == 2
    for a, b in zip(found, wanted):
        assert a == pytest.approx(b, rel=1e-5)


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(RuntimeError, match="cannot be shared out to 2 processes"):
        in_processes(2, trained_with, 7)


def trained_with(batch: int) -> None:
    train(spec(batch))


def test_what_a_batch_carries_on_is_shared_out_and_put_together() -> None:
    state = (torch.arange(12.0).reshape(4, 3), torch.arange(4.0))
    for parts, whole in in_processes(2, shared, state):
        assert all(len(part) == 2 for part in parts)
        assert all(torch.equal(a, b) for a, b in zip(whole, state, strict=True))


def shared(state: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    processes = Together()
    parts = processes.part_of(state)
    return parts, processes.whole(parts)

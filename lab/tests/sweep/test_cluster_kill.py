"""Clusters of several workers, kill -9 of a worker and of the driver: no cell twice, none lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pathsgd_lab.run.record import Record
from pathsgd_lab.sweep.results import RunTable

pytestmark = pytest.mark.nightly
CELLS = 4
COMMAND = [
    *(
        "adding",
        "irnn",
        "sgd",
        "--length",
        "6",
        "--valid-size",
        "20",
        "--test-size",
        "20",
        "--batch-size",
        "4",
    ),
    *(
        "--hidden",
        "4",
        "--steps",
        "3000",
        "--eval-every",
        "3000",
        "--target",
        "1e-12",
        "--grid",
        f"seed=0..{CELLS - 1}",
    ),
]


@contextlib.contextmanager
def sweep(backend: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """`pathsgd sweep` in a process group of its own, which is gone at the end."""
    words = [*COMMAND, "--backend", backend, "--jobs", "2", "--results", str(place / "results")]
    process = subprocess.Popen(
        [sys.executable, "-m", "pathsgd_lab.cli", "sweep", *words, "--work", str(place / "work")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(found: Callable[[], object], process: subprocess.Popen[str] | None = None) -> object:
    """What `found` finds, as soon as it finds something."""
    while not (result := found()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the sweep ended: {process.communicate()[0]}")
        time.sleep(0.02)
    return result


def training(place: Path) -> list[int]:
    """The processes that train a cell at this moment."""
    pids = []
    for status in place.glob("work/*/status.json"):
        with contextlib.suppress(FileNotFoundError):
            pids.append(int((status.parent / "running").read_text().split()[0]))
    return pids


def records(place: Path) -> dict[str, Record]:
    return {f.record.hash: f.record for f in RunTable(place / "results").filed()}


def is_gone(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2:3]
    return True


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_killed_worker_costs_nothing(backend: str, tmp_path: Path) -> None:
    with sweep(backend, tmp_path) as process:
        (pid, *_) = until(lambda: training(tmp_path), process)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        told = process.communicate()[0]
        assert process.returncode == 0, told
    assert len(records(tmp_path)) == CELLS, told


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_sweep_goes_on_where_its_driver_was_killed(backend: str, tmp_path: Path) -> None:
    with sweep(backend, tmp_path) as process:
        until(lambda: records(tmp_path) and training(tmp_path), process)
        process.kill()
        workers = training(tmp_path)
        before = records(tmp_path)
        assert 0 < len(before) < CELLS
        until(lambda: all(map(is_gone, workers)))  # workers follow their driver
    before = records(tmp_path)  # a worker may have written one more in its last moment
    with sweep(backend, tmp_path) as process:
        told = process.communicate()[0]
        assert process.returncode == 0, told
    after = records(tmp_path)
    assert len(after) == CELLS and before.items() <= after.items(), (
        told
    )  # what was there was not made again
    assert {record.outcome for record in after.values()} == {"finished"}
    assert list(tmp_path.rglob("checkpoint-*")) == [] and training(tmp_path) == []

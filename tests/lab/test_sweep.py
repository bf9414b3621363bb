"""Sweeps: grids, one result per cell and no cell twice, killed workers, clusters."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib
import pytest

from pathsgd.lab import flags, grid
from pathsgd.lab.flags import UsageError
from pathsgd.lab.record import read_record
from pathsgd.lab.spec import RunSpec, default_spec, replace_settings, settings
from pathsgd.lab.sweep import Done, Places, RunCell, cluster, run_cells
from pathsgd.lab.train import RunError, train

BASE = replace_settings(
    default_spec("adding", "irnn", "sgd"), length=6, valid_size=20, test_size=20, batch_size=4, hidden=4, steps=40
)


def test_grid_has_every_combination_once() -> None:
    runs = grid.cells(BASE, grid.parse_grid(["lr=1e-2,1e-3,0.01", "seed=0..2", "keep-best=true,false"]))
    assert len(runs) == 2 * 3 * 2
    chosen = [dict(settings(run)) for run in runs]
    assert {(c["lr"], c["seed"], c["keep_best"]) for c in chosen} == {
        (lr, seed, best) for lr in (1e-2, 1e-3) for seed in (0, 1, 2) for best in (True, False)
    }


def test_grid_over_optimisers_keeps_what_they_share() -> None:
    runs = grid.cells(BASE, grid.parse_grid(["optimiser=sgd,path-adam", "lr=0.5"]))
    assert [(r.optimiser.name, r.optimiser.lr, r.system.hidden) for r in runs] == [  # type: ignore[attr-defined]
        ("sgd", 0.5, 4),
        ("path-adam", 0.5, 4),
    ]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["lr"], "is no axis of a grid"),
        (["=3"], "is no axis of a grid"),
        (["lr="], "is no axis of a grid"),
        (["lr=1,,2"], "has an empty value"),
        (["lr=1", "lr=2"], "has lr twice"),
        (["seed=4..2"], "empty range"),
        (["rho=1"], "adding irnn sgd has no setting 'rho'"),
        (["lr=fast"], "could not convert"),
        (["lr=-1"], "lr must be positive"),
        (["optimiser=sgdd"], "unknown optimiser 'sgdd'"),
        (["system=lstm", "optimiser=path-adam"], "path-adam needs a net of linear"),
        (["keep_best=perhaps"], "true or false"),
    ],
)
def test_impossible_grids_get_one_line(axes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        grid.cells(BASE, grid.parse_grid(axes))
    assert "\n" not in str(caught.value)


def sweep(specs: list[RunSpec], place: Path, **options: Any) -> list[Done]:
    return run_cells([RunCell(s) for s in specs], Places(place / "results", place / "work"), jobs=2, **options)


def test_results_are_those_of_single_runs_and_made_once(tmp_path: Path) -> None:
    specs = grid.cells(BASE, grid.parse_grid(["seed=0,1"]))
    told: list[Done] = []
    first = sweep(specs[:1], tmp_path, on_done=told.append)
    assert [d.outcome for d in first] == ["finished"] and told == first
    stamp = next((tmp_path / "results").iterdir()).stat().st_mtime_ns
    second = sweep([*specs, specs[0]], tmp_path)
    assert [d.outcome for d in second] == ["known", "finished"]
    assert next((tmp_path / "results").glob(f"{specs[0].slug}.json")).stat().st_mtime_ns == stamp
    for spec in specs:
        record = read_record(tmp_path / "results" / f"{spec.slug}.json")
        assert record.metrics == pytest.approx(train(spec).metrics, rel=1e-5)
    assert list((tmp_path / "work").rglob("checkpoint-*")) == []


def test_failing_cell_fails_alone(tmp_path: Path, tiny_data: Path) -> None:
    too_large = replace_settings(default_spec("smnist", "irnn"), batch_size=10**6, valid_size=5, steps=1)
    done = sweep([too_large, BASE], tmp_path, data_dir=tiny_data)
    assert [d.outcome for d in done] == ["failed", "finished"]
    assert "batch size 1000000 does not fit" in done[0].detail
    assert "Traceback" in (tmp_path / "work" / too_large.slug / "error.txt").read_text()
    # It has no result, so it is tried again.
    assert [d.outcome for d in sweep([too_large, BASE], tmp_path, data_dir=tiny_data)] == ["failed", "known"]


@contextmanager
def killer(marker: Path, times: int) -> Iterator[list[int]]:
    """Kills (-9) the worker that runs one cell, as often as asked, as soon as the cell has begun to train."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while len(killed) < times and not over.is_set():
            if marker.exists() and (marker.parent / "status.json").exists():
                pid = int(marker.read_text())
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


LONG = replace_settings(BASE, steps=4_000, eval_every=4_000, target=1e-12)


@pytest.mark.parametrize(("times", "outcome"), [(1, "finished"), (2, "killed")])
def test_killed_worker_costs_its_cell_only(tmp_path: Path, times: int, outcome: str) -> None:
    victim = replace_settings(LONG, seed=99)
    specs = [victim, *grid.cells(BASE, grid.parse_grid(["seed=0..3"]))]
    with killer(tmp_path / "work" / victim.slug / "running", times) as killed:
        done = sweep(specs, tmp_path)
    assert len(killed) == times
    assert [d.outcome for d in done] == [outcome] + ["finished"] * 4
    names = {p.name for p in (tmp_path / "results").iterdir()}
    assert names == {f"{s.slug}.json" for s in specs if s is not victim or outcome == "finished"}


# Dask is among the packages that tests need; Ray is tried where it is installed.
CLUSTERS = ["dask", *(["ray"] if importlib.util.find_spec("ray") else [])]


@pytest.mark.parametrize("backend", CLUSTERS)
def test_cluster_gives_the_same_results(tmp_path: Path, backend: Any) -> None:
    specs = grid.cells(BASE, grid.parse_grid(["seed=0..3"]))
    done = sweep(specs, tmp_path, backend=backend)
    assert [d.outcome for d in done] == ["finished"] * 4
    record = read_record(tmp_path / "results" / f"{specs[3].slug}.json")
    assert record.metrics == pytest.approx(train(specs[3]).metrics, rel=1e-5)


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_missing_cluster_library_is_said(monkeypatch: pytest.MonkeyPatch, backend: Any, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError, match=rf"the {backend} backend needs .*: pip install"), cluster(backend, 2, None):
        pass


def test_one_job_leaves_this_process_alone(tmp_path: Path) -> None:
    with cluster("loky", 1, None) as parallel:
        pids = set(parallel(joblib.delayed(os.getpid)() for _ in range(3)))
    assert os.getpid() not in pids


def test_relative_places_mean_the_caller_s_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers of a pool live on: they were started in the directory of whoever used the pool first.
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        done = sweep([BASE], Path("here"))
        assert [d.outcome for d in done] == ["finished"]
        assert (tmp_path / place / "here" / "results" / f"{BASE.slug}.json").exists()


def test_command_of_a_cell_is_that_of_a_run() -> None:
    (run,) = grid.cells(BASE, grid.parse_grid(["lr=0.5"]))
    assert "--lr 0.5" in flags.command_of(run)

"""Sweeps: grids, one result per cell and no cell twice, killed workers, clusters."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import joblib
import pytest
from filelock import FileLock

from pathsgd_lab import flags
from pathsgd_lab.errors import RunError, UsageError
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, default_spec, replace_settings, settings, spec_to_json
from pathsgd_lab.run.train import train
from pathsgd_lab.sweep import grid
from pathsgd_lab.sweep.cells import Cell, Done, RunCell
from pathsgd_lab.sweep.cluster import cluster
from pathsgd_lab.sweep.jobs import run_cells
from pathsgd_lab.sweep.results import RunTable
from support.doomed import KillsItsWorker, deaths

BASE = replace_settings(
    default_spec("adding", "irnn", "sgd"),
    length=6,
    valid_size=20,
    test_size=20,
    batch_size=4,
    hidden=4,
    steps=40,
)


def test_grid_has_every_combination_once() -> None:
    runs = grid.runs_of(
        BASE, grid.parse_grid(["lr=1e-2,1e-3,0.01", "seed=0..2", "keep-best=true,false"])
    )
    assert len(runs) == 2 * 3 * 2
    chosen = [dict(settings(run)) for run in runs]
    assert {(c["lr"], c["seed"], c["keep_best"]) for c in chosen} == {
        (lr, seed, best) for lr in (1e-2, 1e-3) for seed in (0, 1, 2) for best in (True, False)
    }


def test_grid_over_optimisers_keeps_what_they_share() -> None:
    runs = grid.runs_of(BASE, grid.parse_grid(["optimiser=sgd,path-adam", "lr=0.5"]))
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
        grid.runs_of(BASE, grid.parse_grid(axes))
    assert "\n" not in str(caught.value)


def run(cells: Sequence[Cell], place: Path, **options: Any) -> list[Done]:
    return run_cells(cells, RunTable(place / "results"), place / "work", jobs=2, **options)


def sweep(specs: list[RunSpec], place: Path, **options: Any) -> list[Done]:
    return run([RunCell(s) for s in specs], place, **options)


def filed(place: Path) -> dict[str, Record]:
    """The runs in a table, by slug."""
    return {f.record.spec.slug: f.record for f in RunTable(place / "results").filed()}


def test_results_are_those_of_single_runs_and_made_once(tmp_path: Path) -> None:
    specs = grid.runs_of(BASE, grid.parse_grid(["seed=0,1"]))
    told: list[Done] = []
    first = sweep(specs[:1], tmp_path, on_done=told.append)
    assert [d.outcome for d in first] == ["finished"] and told == first
    before = filed(tmp_path)[specs[0].slug]
    second = sweep([*specs, specs[0]], tmp_path)
    assert [d.outcome for d in second] == ["known", "finished"]
    assert filed(tmp_path)[specs[0].slug] == before and len(filed(tmp_path)) == 2
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"lock", "runs.jsonl.gz"}
    for spec in specs:
        record = filed(tmp_path)[spec.slug]
        assert record.metrics == pytest.approx(train(spec).metrics, rel=1e-5)
    assert list((tmp_path / "work").rglob("checkpoint-*")) == []


def test_failing_cell_fails_alone(tmp_path: Path, tiny_data: Path) -> None:
    too_large = replace_settings(
        default_spec("smnist", "irnn"), batch_size=10**6, valid_size=5, steps=1
    )
    done = sweep([too_large, BASE], tmp_path, data_dir=tiny_data)
    assert [d.outcome for d in done] == ["failed", "finished"]
    assert "batch size 1000000 does not fit" in done[0].detail
    assert "Traceback" in (tmp_path / "work" / too_large.slug / "error.txt").read_text()
    # It has no result, so it is tried again.
    assert [d.outcome for d in sweep([too_large, BASE], tmp_path, data_dir=tiny_data)] == [
        "failed",
        "known",
    ]


def test_relative_places_mean_the_caller_s_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers of a pool live on: they were started in the directory of whoever used the pool first.
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        done = sweep([BASE], Path("here"))
        assert [d.outcome for d in done] == ["finished"]
        assert list(filed(tmp_path / place / "here")) == [BASE.slug]


def test_killed_workers_cost_their_cells_only(tmp_path: Path) -> None:
    """One worker killed once costs nothing; one killed at every try costs its cell."""
    once, always = (replace_settings(BASE, seed=seed) for seed in (98, 99))
    others = grid.runs_of(BASE, grid.parse_grid(["seed=0..3"]))
    first, second = (tmp_path / "work" / spec.slug for spec in (once, always))
    doomed = [KillsItsWorker(once, times=1), KillsItsWorker(always, times=9, after=first)]
    done = run(doomed + [RunCell(spec) for spec in others], tmp_path)
    # The second worker ends with the pool of the first, or kills itself before that.
    assert deaths(first) == 1 and deaths(second) in (1, 2)
    assert [d.outcome for d in done] == ["finished", "killed"] + ["finished"] * 4
    assert filed(tmp_path).keys() == {spec.slug for spec in (once, *others)}


# Dask is among the packages that tests need; Ray is tried where it is installed.
CLUSTERS = ["dask", *(["ray"] if importlib.util.find_spec("ray") else [])]


@pytest.mark.parametrize("backend", CLUSTERS)
def test_cluster_gives_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "600s")  # on a busy machine
    specs = grid.runs_of(BASE, grid.parse_grid(["seed=0..3"]))
    done = sweep(specs, tmp_path, backend=backend)
    assert [d.outcome for d in done] == ["finished"] * 4
    record = filed(tmp_path)[specs[3].slug]
    assert record.metrics == pytest.approx(train(specs[3]).metrics, rel=1e-5)


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_missing_cluster_library_is_said(
    monkeypatch: pytest.MonkeyPatch, backend: Any, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(RunError, match=rf"the {backend} backend needs .*: pip install"),
        cluster(backend, 2, None),
    ):
        pass


def test_one_job_leaves_this_process_alone(tmp_path: Path) -> None:
    with cluster("loky", 1, None) as parallel:
        pids = set(parallel(joblib.delayed(os.getpid)() for _ in range(3)))
    assert os.getpid() not in pids


def test_command_of_a_cell_is_that_of_a_run() -> None:
    (run,) = grid.runs_of(BASE, grid.parse_grid(["lr=0.5"]))
    assert "--lr 0.5" in flags.command_of(run)


def sweep_command(place: Path) -> list[str]:
    words = "sweep adding irnn --length 6 --hidden 4 --steps 3000 --eval-every 500"
    words += " --valid-size 10 --test-size 10"
    places = [
        "--results",
        str(place / "results"),
        "--work",
        str(place / "work"),
        "--grid",
        "seed=0,1",
    ]
    return [sys.executable, "-m", "pathsgd_lab.cli", *words.split(), "--jobs", "2", *places]


def end(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0 and "Traceback" not in errors, errors
    return out


def test_the_same_sweep_twice_at_once_makes_each_result_once(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(sweep_command(tmp_path), stdout=PIPE, stderr=PIPE, text=True)
        for _ in range(2)
    ]
    out = [end(process) for process in both]
    assert all("2 of 2 cells" in text and "failed" not in text for text in out)
    logs = [
        line
        for path in (tmp_path / "work").glob("*/record.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sum('"kind": "start"' in line for line in logs) == 2, "each cell was begun once"


def killed_sweep(specs: list[RunSpec], place: Path) -> None:
    """A sweep in a process of its own that is killed (-9) as soon as all its cells train."""
    words = [json.dumps(spec_to_json(spec)) for spec in specs]
    with (place / "errors.txt").open("w") as errors:  # a pipe would stay open until its workers end
        done = subprocess.run(
            [sys.executable, "-m", "support.doomed", place, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=errors,
        )
    assert done.returncode == -signal.SIGKILL, (place / "errors.txt").read_text()


def test_workers_that_outlive_their_sweep_are_waited_for(tmp_path: Path) -> None:
    specs = [replace_settings(BASE, steps=3_000, seed=seed) for seed in (0, 1)]
    killed_sweep(specs, tmp_path)
    assert {d.outcome for d in sweep(specs, tmp_path)} <= {"finished", "known"}
    assert len(filed(tmp_path)) == 2


def test_workers_stop_and_save_when_their_sweep_is_killed(tmp_path: Path) -> None:
    specs = [replace_settings(BASE, steps=10**8, seed=seed) for seed in (0, 1)]
    killed_sweep(specs, tmp_path)
    for spec in specs:
        work = tmp_path / "work" / spec.slug
        with FileLock(work / "cell.lock"):  # its worker has it until it is done
            assert '"kind": "stopped"' in (work / "record.jsonl").read_text()
        assert list(work.glob("checkpoint-*")), "nothing that was trained is lost"


def test_a_damaged_line_is_made_again(tmp_path: Path) -> None:
    sweep([BASE], tmp_path)
    table = RunTable(tmp_path / "results")
    whole = gzip.decompress(table.packed.read_bytes()).decode()
    for damage in (
        re.sub(r'"valid": [\d.]+, "test"', '"valid": "nan", "test"', whole),
        whole[:-20],
        "",
        "[]",
    ):
        table.packed.unlink()
        table.growing.write_text(damage)
        assert [d.outcome for d in sweep([BASE], tmp_path)] == ["finished"]
        (record,) = filed(tmp_path).values()
        assert record.metrics == pytest.approx(train(BASE).metrics, rel=1e-5)

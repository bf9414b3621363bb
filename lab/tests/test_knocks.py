"""Bad input, a full disk, a file in the way: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pathsgd_lab import cli
from pathsgd_lab.sweep.results import RunTable
from support.disk import Recorder

SIZES = {"length": 4, "hidden": 3, "steps": 40, "eval-every": 20, "valid-size": 8, "test-size": 8}
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
TRAIN = ["train", "adding", "irnn", *SMALL]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write below the working directory."""
    monkeypatch.chdir(tmp_path)


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


BAD_VALUES = {
    "no batch": ([*TRAIN, "--batch-size", "0"], "threads and batch_size must be at least 1"),
    "no threads": ([*TRAIN, "--threads", "0"], "threads and batch_size must be at least 1"),
    "a seed of 30 digits": (
        [*TRAIN, "--seed", "9" * 30],
        "seed must be from 0 to 9223372036854775807",
    ),
    "a negative seed": ([*TRAIN, "--seed", "-1"], "seed must be from 0 to"),
    "a negative limit": ([*TRAIN, "--eval-limit", "-1"], "eval_limit must be at least 1 or None"),
    "far out of balance": ([*TRAIN, "--unbalanced", "1e300"], "unbalanced must be from 1 to 1e+12"),
    "infinite rate": ([*TRAIN, "--lr", "inf"], "lr must be a finite number"),
    "no number for a clip": ([*TRAIN, "--clip", "nan"], "clip must be a finite number"),
    "infinite explosion": ([*TRAIN, "--explode", "inf"], "explode must be a finite number"),
    "infinite rate in a grid": (
        ["sweep", "adding", "irnn", "--grid", "lr=1e-3,inf"],
        "lr must be a finite number",
    ),
    "no such results": (["report", "no-such-dir"], "no-such-dir is not a directory of runs"),
    "both ways to go on": ([*TRAIN, "--resume", "--restart"], "give one of them"),
    "a name too long": ([*TRAIN, "--run-dir", "x" * 300], "File name too long"),
    "a path too long": ([*TRAIN, "--run-dir", "x/" * 3000], "File name too long"),
    "a report with a name too long": (["report", ".", "--out", "x" * 300], "File name too long"),
    "no such cell": (
        ["reproduce", "adding", "--only", "hidden=77"],
        "no cell of adding has hidden=77",
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_are_told_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD_VALUES[name]
    assert cli.main(words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("pathsgd: error: ") and errors.count("\n") == 1 and message in errors
    assert below(tmp_path) == set()


IN_THE_WAY = {
    "a run": [*TRAIN, "--run-dir", "taken"],
    "a run below": [*TRAIN, "--run-dir", "taken/run"],
    "records of a sweep": [
        "sweep",
        "adding",
        "irnn",
        *SMALL,
        "--grid",
        "seed=0,1",
        "--results",
        "taken",
    ],
    "work of a sweep": [
        "sweep",
        "adding",
        "irnn",
        *SMALL,
        "--grid",
        "seed=0,1",
        "--work",
        "taken/work",
    ],
    "a page": ["report", ".", "--out", "taken/report.html"],
    "results": ["report", "taken"],
    "an export": ["export", "taken"],
    "data": ["data", "fetch", "mnist", "--data-dir", "taken"],
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_file_where_a_folder_should_be(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert cli.main(IN_THE_WAY[name]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("pathsgd: error: ") and errors.count("\n") == 1 and "taken" in errors
    assert (tmp_path / "taken").read_text() == "mine"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["taken"]


def limited(words: list[str], largest_file: int) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose files may not grow beyond a size."""
    command = [sys.executable, "-m", "pathsgd_lab.cli", *words]
    limit = (largest_file, largest_file)
    # Python ignores the signal of the limit, so that going beyond it is an error, as on a disk that
    # is full.
    before = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)  # noqa: E731
    # joblib's process that cleans up may warn, after a worker has failed.
    env = {**os.environ, "PYTHONWARNINGS": "ignore:resource_tracker"}
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=before, env=env)


@pytest.mark.parametrize("largest_file", [10, 1000, 4000])
def test_a_disk_that_fills_up_leaves_a_run_that_goes_on(largest_file: int, tmp_path: Path) -> None:
    done = limited([*TRAIN, "--run-dir", "r", "--quiet"], largest_file)
    assert done.returncode == 2 and re.fullmatch(
        r"pathsgd: error: File too large.*\n", done.stderr
    ), done.stderr
    assert not list(tmp_path.rglob("*.tmp"))
    assert cli.main([*TRAIN, "--run-dir", "r", "--quiet", "--resume"]) == 0


@pytest.mark.parametrize("largest_file", [100, 1000, 4000])
def test_a_sweep_on_a_disk_that_fills_up_ends_in_one_line_and_goes_on(
    largest_file: int, tmp_path: Path
) -> None:
    words = [
        "sweep",
        "adding",
        "irnn",
        *SMALL,
        "--grid",
        "seed=0,1,2",
        "--results",
        "s",
        "--jobs",
        "2",
    ]
    done = limited(words, largest_file)
    assert done.returncode == 2 and re.fullmatch(
        r"pathsgd: error: File too large: \S+\n", done.stderr
    ), done.stderr
    assert "Traceback" not in done.stdout
    assert cli.main(words) == 0
    assert len(RunTable(tmp_path / "s").filed()) == 3


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_takes_nothing(
    error: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder(tmp_path, 0, error, lasting=True):
        assert cli.main([*TRAIN, "--run-dir", "shut/run", "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and os.strerror(error) in errors and "shut" in errors
    assert below(tmp_path) == set()


def test_marks_in_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name = "run [/bold] [red]"
    assert cli.main([*TRAIN, "--run-dir", name, "--quiet"]) == 0
    assert f"{name}/summary.json" in capsys.readouterr().out
    words = [
        "sweep",
        "adding",
        "irnn",
        *SMALL,
        "--grid",
        "seed=0",
        "--results",
        f"{name}/results",
        "--jobs",
        "1",
    ]
    assert cli.main(words) == 0
    assert f"runs in {name}/results" in capsys.readouterr().out
    assert cli.main(["report", name]) == 0


def command(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pathsgd_lab.cli", *words], capture_output=True, check=False
    )


def test_names_of_any_bytes_are_shown_and_obeyed_by_no_terminal(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \x1b[31m \x07")
    done = command(*TRAIN, "--run-dir", name, "--quiet")
    assert done.returncode == 0 and b"summary.json" in done.stdout and not done.stderr
    (tmp_path / name / "sweep").mkdir()
    run = json.loads((tmp_path / name / "summary.json").read_text())
    (tmp_path / name / "sweep" / "runs.jsonl").write_text(json.dumps(run) + "\n{\n")
    done = command("report", name, "--out", f"{name}.html")
    assert done.returncode == 0 and b"1 records" in done.stdout
    assert b"line 2, cannot be read as a run" in done.stderr and done.stderr.count(b"\n") == 1
    assert not {b"\x1b", b"\x07"} & {done.stderr[i : i + 1] for i in range(len(done.stderr))}
    done = command("resume", f"{name}/nothing")
    assert done.returncode == 2 and b"\\x1b[31m" in done.stderr and b"\x1b" not in done.stderr


def test_a_demo_deletes_nothing_but_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("records/mine.txt", "records/mine.json", "work/thesis/chapter.tex", "report.txt"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("mine")
    words = ["demo", "--out", ".", "--length", "4", "--steps", "4", "--jobs", "1"]
    assert cli.main(words) == 0
    assert "8 of 8 cells: 8 finished" in capsys.readouterr().out
    assert (
        len(
            [
                path
                for path in tmp_path.rglob("*")
                if path.is_file() and path.read_bytes() == b"mine"
            ]
        )
        == 4
    )

"""The command line: help lists everything; a mistake gives one line and exit code 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pathsgd_lab import cli
from pathsgd_lab.report.robustness import robustness_map
from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.record import read_record
from pathsgd_lab.sweep.results import RunTable
from pathsgd_lab.systems import SYSTEMS
from pathsgd_lab.tasks import TASKS

TINY = [
    "--length",
    "6",
    "--valid-size",
    "20",
    "--test-size",
    "20",
    "--batch-size",
    "4",
    "--hidden",
    "4",
    "--steps",
    "40",
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write below the working directory."""
    monkeypatch.chdir(tmp_path)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in cli.COMMANDS)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"usage: pathsgd {command}" in capsys.readouterr().out


def test_help_of_train_lists_what_there_is_and_then_every_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in (*TASKS, *SYSTEMS, *OPTIMISERS))
    assert cli.main(["train", "adding", "irnn", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(
        flag in text
        for flag in ("--length", "--lr", "--momentum", "--start-length", "--resume", "--seconds")
    )


MISTAKES = {
    "unknown command": (["trian"], "unknown command 'trian'; choose one of"),
    "unknown task": (["train", "addding", "irnn"], "unknown task 'addding'; choose one of adding"),
    "unknown system": (["train", "adding", "irn"], "unknown system 'irn'; choose one of"),
    "unknown optimiser": (
        ["train", "adding", "irnn", "adm"],
        "unknown optimiser 'adm'; choose one of",
    ),
    "no system": (["train", "adding"], "give a task and a system"),
    "unknown flag": (["train", "adding", "irnn", "--lenght", "3"], "perhaps you meant --length"),
    "bad value": (["train", "adding", "irnn", "--length", "long"], "invalid literal"),
    "bad size": (["train", "adding", "irnn", "--length", "1"], "at least 2 steps"),
    "bad pair": (
        ["train", "adding", "lstm", "path-adam"],
        "path-adam needs a net of linear and ReLU parts",
    ),
    "missing data": (
        ["train", "smnist", "irnn", "--data-dir", "nowhere"],
        "run `pathsgd data fetch mnist`",
    ),
    "missing spec": (["train", "nothing.json"], "nothing.json not found"),
    "no run": (["resume", "nowhere"], "is not the directory of a run"),
    "no grid": (["sweep", "adding", "irnn"], "a sweep needs a grid"),
    "impossible grid": (["sweep", "adding", "irnn", "--grid", "speed=1"], "no setting 'speed'"),
    "unknown data": (["data", "fetch", "mnits"], "unknown data set 'mnits'"),
    "unknown action": (["data", "fecth"], "fecth"),
    "wrong data": (["data", "check", "ptb", "--data-dir", "nowhere"], "run `pathsgd data fetch`"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_line_and_code_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = MISTAKES[name]
    assert cli.main(words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("pathsgd: error: ") and errors.count("\n") == 1
    assert message in errors


def test_train_then_resume_then_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "adding", "irnn", *TINY, "--run-dir", "r"]) == 0
    text = capsys.readouterr().out
    assert "outcome" in text and "pathsgd train adding irnn sgd" in text
    assert read_record(Path("r/summary.json")).steps == 40
    assert cli.main(["train", "adding", "irnn", *TINY, "--run-dir", "r"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert cli.main(["resume", "r"]) == 0
    assert cli.main(["train", "r/spec.json", "--run-dir", "r", "--restart", "--quiet"]) == 0
    assert cli.main(["train", "r", "--run-dir", "s", "--steps", "20", "--quiet"]) == 0
    assert read_record(Path("s/summary.json")).steps == 20


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = [
        "train",
        "adding",
        "irnn",
        *TINY,
        "--steps",
        "1000000",
        "--run-dir",
        "r",
        "--eval-every",
        "100",
    ]
    command = [sys.executable, "-m", "pathsgd_lab.cli", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and "step" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Go on with: pathsgd resume r" in out and "Traceback" not in errors
    assert list(tmp_path.glob("r/checkpoint-*.safetensors"))


def test_sweep_shows_its_map_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "sweep",
        "adding",
        "irnn",
        *TINY,
        "--grid",
        "lr=1e-2,1e9",
        "seed=0,1",
        "--clip",
        "0",
        "--jobs",
        "2",
    ]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert (
        "4 of 4 cells: 2 diverged, 2 finished" in text
        and "0 / 2 / 0" in text
        and "0 / 0 / 2" in text
    )
    assert Path("runs/sweep/robustness.png").stat().st_size > 1000
    found = robustness_map([filed.record for filed in RunTable(Path("runs/sweep")).filed()])
    assert found.rates == (1e-2, 1e9) and found.counts("SGD") == {
        "solved": 0,
        "stalled": 2,
        "diverged": 2,
    }
    assert cli.main(words) == 0
    assert "4 known" in capsys.readouterr().out


def test_data_list_says_what_is_here(tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list", "--data-dir", str(tiny_data)]) == 0
    text = capsys.readouterr().out
    assert "mnist/train-labels-idx1-ubyte.gz" in text and "expected 9912422" in " ".join(
        text.split()
    )


def test_a_missing_package_is_named() -> None:
    program = "import sys; sys.modules['tyro'] = None; from pathsgd_lab import cli; "
    program += "sys.exit(cli.main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "tyro is missing" in done.stderr and "pip install pathsgd-lab" in done.stderr

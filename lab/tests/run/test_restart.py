"""A new run over an old one, a diverged run, damaged files: nothing is lost, errors are named."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pathsgd_lab.errors import CheckpointError, DataError, LabError, RunError, SpecError
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.listeners import Listener, Status
from pathsgd_lab.run.record import read_record
from pathsgd_lab.run.spec import default_spec, replace_settings, spec_hash
from pathsgd_lab.run.train import resume, spec_of, train

BASE = replace_settings(
    default_spec("adding", "irnn", "sgd"),
    length=4,
    hidden=3,
    steps=60,
    eval_every=20,
    valid_size=8,
    test_size=8,
)
OTHER = replace_settings(BASE, lr=0.5)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != "lock"
    }


class Fails(Listener):
    """Ends a run with an error after its first steps."""

    def on_status(self, status: Status) -> None:
        raise RuntimeError("enough")


def test_restart_leaves_a_live_run_alone(tmp_path: Path) -> None:
    train(BASE, tmp_path)
    before = contents(tmp_path)
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(RunError, match="another process is running"),
    ):
        train(OTHER, tmp_path, restart=True)
    assert contents(tmp_path) == before


def test_restart_checks_everything_before_it_touches_the_old_run(tmp_path: Path) -> None:
    train(BASE, tmp_path / "run")
    before = contents(tmp_path)
    without_data = replace_settings(default_spec("smnist", "irnn"), steps=1)
    with pytest.raises(DataError, match="not found"):
        train(without_data, tmp_path / "run", restart=True, data_dir=tmp_path / "nowhere")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("times", [1, 2])
def test_the_old_run_is_back_when_the_new_one_fails_before_its_first_checkpoint(
    tmp_path: Path, times: int
) -> None:
    train(BASE, tmp_path)
    before = contents(tmp_path)
    for _ in range(times):
        with pytest.raises(RuntimeError, match="enough"):
            train(OTHER, tmp_path, restart=True, listeners=[Fails()])
        assert contents(tmp_path) == before
    assert resume(tmp_path).hash == spec_hash(BASE)


def test_the_old_run_goes_with_the_first_checkpoint_of_the_new_one(tmp_path: Path) -> None:
    train(BASE, tmp_path)
    train(OTHER, tmp_path, restart=True)
    assert spec_of(tmp_path) == OTHER and not (tmp_path / "previous").exists()
    assert read_record(tmp_path / "summary.json").hash == spec_hash(OTHER)


def test_a_run_that_could_not_begin_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        train(
            replace_settings(default_spec("smnist", "irnn"), steps=1),
            tmp_path / "a" / "b",
            data_dir=tmp_path,
        )
    with pytest.raises(RunError, match=r"no spec\.json"):
        resume(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverged_stays_diverged(tmp_path: Path) -> None:
    """Killed after its last checkpoint and before its record, it goes on as what it was."""
    spec = replace_settings(BASE, lr=1e9, clip=0.0, explode=1e3)
    first = train(spec, tmp_path)
    assert first.outcome == "diverged" and "at step" in first.detail
    (tmp_path / "summary.json").unlink()
    again = resume(tmp_path)
    assert (again.outcome, again.detail, again.metrics) == (
        first.outcome,
        first.detail,
        first.metrics,
    )


def test_final_figures_that_are_no_numbers_are_a_divergence(tmp_path: Path) -> None:
    spec = replace_settings(
        BASE, lr=1e30, clip=0.0, explode=1e38, keep_best=False, steps=1, eval_every=1
    )
    record = train(spec, tmp_path)
    assert (record.outcome, record.metrics) == ("diverged", {})
    assert read_record(tmp_path / "summary.json").outcome == "diverged"


RUN = '{"task": {"name": "adding", "length": %s}, "system": {"name": "irnn"}'
DAMAGE = [
    "", "{", "null", "[]", "3", "\x00", "\xff\xfe", "{}", '{"task": 3}',
    '{"task": {"name": []}}', '{"task": {"name": "adding"}}',
    RUN % '"x"' + ', "optimiser": {"name": "sgd"}}',
    RUN % 2 + ', "optimiser": {"name": "sgd"}, "seed": -1}',
    RUN % 2 + ', "optimiser": {"name": "sgd"}, "seed": 1.5}',
    RUN % 2 + ', "optimiser": {"name": "sgd"}, "budget": []}',
    RUN % 2 + ', "optimiser": {"name": "sgd", "lr": NaN}}',
    RUN % 2 + ', "optimiser": {"name": "sgd", "lr": 1e999}}',
    "[" * 100_000, '{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_a_damaged_spec_is_named_in_one_line(number: int, tmp_path: Path) -> None:
    train(BASE, tmp_path)
    (tmp_path / "spec.json").write_bytes(DAMAGE[number].encode("latin-1"))
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=r"spec\.json is not the JSON of a run") as caught:
        resume(tmp_path)
    assert "\n" not in str(caught.value) and contents(tmp_path) == before


def test_damaged_lines_of_the_log_are_named_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(BASE, tmp_path)
    (tmp_path / "summary.json").unlink()
    log = tmp_path / "record.jsonl"
    lines = log.read_text().splitlines()
    log.write_text(
        "\n".join(
            [lines[0], "{", "[1]", '{"step": 3}', '{"kind": 3}', "\x00", "[" * 10**5, *lines[1:]]
        )
        + "\n"
    )
    with caplog.at_level(logging.WARNING):
        assert resume(tmp_path).outcome == "finished"
    assert all(f"record.jsonl, line {number} is damaged" in caplog.text for number in range(2, 8))
    assert json.loads(log.read_text().splitlines()[0])["kind"] == "start"


def test_a_damaged_record_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = train(BASE, tmp_path)
    (tmp_path / "summary.json").write_text("{")
    assert resume(tmp_path).metrics == whole.metrics
    assert "summary.json cannot be read as a record" in caplog.text
    assert read_record(tmp_path / "summary.json").hash == whole.hash


@pytest.mark.parametrize(
    "content", [None, [], {}, {"spec": 3}, {"spec": spec_hash(BASE)}, {"step": {1: 2}}]
)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(
    content: object, tmp_path: Path
) -> None:
    train(BASE, tmp_path)
    (tmp_path / "summary.json").unlink()
    for path in checkpoint.paths(tmp_path):
        path.unlink()
    checkpoint.save(tmp_path, 60, content)
    with pytest.raises(CheckpointError) as caught:
        resume(tmp_path)
    assert "\n" not in str(caught.value) and isinstance(caught.value, LabError)

"""A stop at any moment or a failure of any call costs nothing: the continued run is the same."""

import dataclasses
import logging
from pathlib import Path

import pytest

from pathsgd_lab.errors import LabError
from support.crash import FAULTS, SCENARIOS, Fault, Uninterrupted, failed, left_alone, row, stopped
from support.disk import STOPS, Stop, after

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Warnings of damaged files are part of the game."""
    caplog.set_level(logging.CRITICAL)


def calm_run(name: str, place: Path) -> tuple[Path, Uninterrupted]:
    start = place / "start"
    return start, left_alone(SCENARIOS[name], start, place / "calm")


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stop_at_any_moment_costs_nothing(name: str, stop: Stop, tmp_path: Path) -> None:
    start, calm = calm_run(name, tmp_path)
    assert len(calm.changes) > 30
    assert list(stopped(SCENARIOS[name], calm, start, tmp_path, stop)) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_call_that_fails_costs_nothing_and_leaves_nothing(
    name: str, fault: Fault, tmp_path: Path
) -> None:
    start, calm = calm_run(name, tmp_path)
    assert list(failed(SCENARIOS[name], calm, start, tmp_path, fault)) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_change_to_the_disk_escapes_the_harness(name: str, tmp_path: Path) -> None:
    """What the recorded changes make of the start is what the run left, byte for byte."""
    start, calm = calm_run(name, tmp_path)
    after(start, calm.changes, len(calm.changes), "killed", tmp_path / "made")
    made, left = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        for place in (tmp_path / "made", tmp_path / "calm")
    )
    assert made == {path: content for path, content in left.items() if path.name != "lock"}


def test_the_harness_notices_a_run_that_does_not_flush(tmp_path: Path) -> None:
    start, calm = calm_run("cell", tmp_path)
    careless = dataclasses.replace(
        calm, changes=[change for change in calm.changes if change.call != "fsync"]
    )
    with pytest.raises(LabError, match="is not the JSON of a run"):
        list(stopped(SCENARIOS["cell"], careless, start, tmp_path, "renamed"))


def test_the_harness_notices_a_result_that_was_lost(tmp_path: Path) -> None:
    start, calm = calm_run("run", tmp_path)
    other = dataclasses.replace(calm, outcomes=["another result"])
    assert len(list(stopped(SCENARIOS["run"], other, start, tmp_path, "killed"))) == len(
        calm.moments("killed")
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_page_has_the_harness_s_counts(name: str, tmp_path: Path) -> None:
    _, calm = calm_run(name, tmp_path)
    assert row(SCENARIOS[name], calm, 0) in PAGE.read_text("utf-8"), (
        "put the output of tests/support/crash.py there"
    )

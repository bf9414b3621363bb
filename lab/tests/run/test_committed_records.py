"""The records behind the tables: readable, named after their settings, true to their runs."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from pathsgd_lab.errors import RecordError, SpecError
from pathsgd_lab.experiments import EXPERIMENTS
from pathsgd_lab.experiments.base import FIXED_BOUND
from pathsgd_lab.run.record import read_record
from pathsgd_lab.run.spec import default_spec, replace_settings

RESULTS = Path(__file__).parents[3] / "results"
FOLDERS = sorted(
    path.name for path in RESULTS.iterdir() if path.is_dir() and path.name != "__pycache__"
)


@pytest.fixture(scope="module")
def correction() -> ModuleType:
    """The script that corrected the records."""
    found = importlib.util.spec_from_file_location("correct_growth", RESULTS / "correct_growth.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_record_is_read_and_named_after_its_settings(folder: str) -> None:
    read = EXPERIMENTS[folder].read if folder in EXPERIMENTS else read_record
    paths = sorted((RESULTS / folder).glob("*.json"))
    assert paths
    for path in paths:
        record = read(path)
        assert json.loads(path.read_text())["hash"] == record.hash and path.stem.endswith(
            record.hash[:10]
        ), path


def test_no_record_states_a_bound_that_was_not_in_force(correction: ModuleType) -> None:
    optimisers = [
        content["spec"]["optimiser"]
        for path in RESULTS.rglob("*.json")
        if "spec" in (content := json.loads(path.read_text()))
    ]
    assert len(optimisers) >= 866
    assert not any(map(correction.states_unused_growth, optimisers))


def test_correction_changes_only_the_bound_and_the_names(
    correction: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("smnist", "kappa-ratios"):
        shutil.copytree(RESULTS / folder, tmp_path / folder)
    before = {path: path.read_text() for path in sorted(tmp_path.rglob("*.json"))}
    right = next(path for path in before if "path-adam-paper" in path.name)
    stale = (
        before[right]
        .replace('"step_growth": 0.0', '"step_growth": 0.3')
        .replace(read_record(right).hash, "0" * 64)
    )
    right.unlink()
    wrong = right.with_name("smnist-rnn_path-path-adam-paper-0000000000.json")
    wrong.write_text(stale)
    with pytest.raises(RecordError, match="no bound on growth"):
        read_record(wrong)
    for count in (1, 0):
        correction.main(tmp_path)
        assert f"{count} records corrected" in capsys.readouterr().out
        assert {path: path.read_text() for path in sorted(tmp_path.rglob("*.json"))} == before


@pytest.mark.parametrize(
    ("optimiser", "changes"),
    [
        ("path-adam-paper", {"step_growth": 0.3}),
        ("path-sgd", {"rho": 0.0, "clip": 0.0, **FIXED_BOUND}),
    ],
)
def test_a_bound_that_a_rule_does_not_have_cannot_be_stated(
    optimiser: str, changes: dict[str, float]
) -> None:
    with pytest.raises((SpecError, ValueError), match="set step_growth to 0"):
        replace_settings(default_spec("adding", "rnn_path", optimiser), **changes)
    replace_settings(
        default_spec("adding", "rnn_path", optimiser), **{**changes, "step_growth": 0.0}
    )

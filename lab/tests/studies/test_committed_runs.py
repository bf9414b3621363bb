"""The runs that the tables are made from: all readable, in order, marked, and true to their
settings."""

from __future__ import annotations

import gzip
import json

import pytest

from pathsgd_lab.run.optimisers.retired import REMARK, RetiredOptimiser
from pathsgd_lab.run.record import Record, record_from_json
from pathsgd_lab.run.spec import json_hash
from pathsgd_lab.studies import Studies

STUDIES = Studies()
TABLES = [name for name in STUDIES.names if STUDIES.runs(name).packed.exists()]


def test_every_study_has_a_page_and_what_it_shows() -> None:
    for study in STUDIES:
        assert (STUDIES.folder / study.name / "README.md").exists()
        assert study.name in TABLES or set(study.reads) <= set(TABLES)
        assert not STUDIES.runs(study.name).growing.exists(), "pack it"


@pytest.mark.parametrize("name", TABLES)
def test_every_line_is_a_run_with_the_hash_of_its_settings(name: str) -> None:
    table = STUDIES.runs(name)
    with gzip.open(table.packed, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    filed = table.filed()
    assert len(filed) == len(lines) == len({line["hash"] for line in lines}) > 0
    for line, run in zip(lines, filed, strict=True):
        assert line["version"] == 2 and line["hash"] == run.record.hash
        if "spec" in line:
            assert line["hash"] == json_hash(line["spec"])


@pytest.mark.parametrize("name", TABLES)
def test_runs_say_what_limits_their_use(name: str) -> None:
    for run in (filed.record for filed in STUDIES.runs(name).filed()):
        remarks, commit = list(run.remarks), run.commit
        assert ("the source had changes beyond the commit" in remarks) == commit.endswith("+")
        assert ("the commit was not noted" in remarks) == (not commit.rstrip("+"))
        retired = isinstance(run, Record) and isinstance(run.spec.optimiser, RetiredOptimiser)
        assert (REMARK in remarks) == retired


def test_the_counts_are_those_of_the_conversion() -> None:
    runs = [filed.record for name in TABLES for filed in STUDIES.runs(name).filed()]
    remarks = [remark for run in runs for remark in run.remarks]
    assert remarks.count(REMARK) == 398
    names = {run.spec.optimiser.name for run in runs if isinstance(run, Record)}
    assert "path-adam-absolute" not in names and {"path-adam", "path-adam-relative"} <= names


@pytest.mark.parametrize("name", [n for n in TABLES if STUDIES[n].stages])
def test_the_runs_of_a_sweep_are_those_that_its_study_defines(name: str) -> None:
    study = STUDIES[name]
    if f"runs-{name}" not in study.tables:
        return
    defined = {cell.key for stage in study.stages for cell in stage("laptop", [])}
    runs = [filed.record for filed in STUDIES.runs(name).filed()]
    assert {run.hash for run in runs if REMARK not in run.remarks} == defined


def test_a_record_reads_back_as_it_was_written() -> None:
    record = STUDIES.filed("adding")[0].record
    assert record_from_json(json.loads(json.dumps(record.to_json()))) == record

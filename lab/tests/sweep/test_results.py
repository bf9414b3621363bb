"""A table of runs: kills, writers at once and damaged lines lose no finished run."""

from __future__ import annotations

import gzip
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pathsgd_lab.errors import RecordError
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import replace_settings
from pathsgd_lab.studies import Studies
from pathsgd_lab.sweep.results import RunTable

RECORD: Record = Studies().filed("adding")[0].record


def run(seed: int) -> dict[str, Any]:
    """A run like the others but for its seed."""
    spec = replace_settings(RECORD.spec, seed=seed)
    return Record(**{**vars(RECORD), "spec": spec}).to_json()


def seeds(table: RunTable) -> list[int]:
    return [filed.record.spec.seed for filed in RunTable(table.folder).filed()]


@pytest.fixture
def table(tmp_path: Path) -> RunTable:
    return RunTable(tmp_path / "study")


def test_what_is_appended_is_read_back_before_and_after_packing(table: RunTable) -> None:
    for seed in range(3):
        table.append(run(seed))
    assert seeds(table) == [0, 1, 2] and table.has(run(1)["hash"]) and not table.has(run(7)["hash"])
    first = [filed.record for filed in table.filed()]
    table.pack()
    assert not table.growing.exists() and [f.record for f in table.filed()] == first
    packed = table.packed.read_bytes()
    table.pack()
    assert table.packed.read_bytes() == packed
    table.append(run(3))
    table.pack()
    assert seeds(table) == [0, 1, 2, 3]
    with gzip.open(table.packed) as file:
        assert [json.loads(line) for line in file] == [run(seed) for seed in range(4)]


def test_packing_twice_gives_the_same_bytes(table: RunTable, tmp_path: Path) -> None:
    other = RunTable(tmp_path / "other")
    for each in (table, other):
        each.append(run(0))
        each.pack()
    assert table.packed.read_bytes() == other.packed.read_bytes()


def test_a_damaged_line_is_reported_with_its_number_and_hides_no_other(
    table: RunTable, caplog: pytest.LogCaptureFixture
) -> None:
    table.append(run(0))
    with table.growing.open("a") as file:
        file.write("{damaged\n" + json.dumps(run(1))[:-40])  # torn: no end of line
    table.append(run(2))
    with caplog.at_level(logging.WARNING):
        assert seeds(table) == [0, 2]
    told = "\n".join(caplog.messages)
    assert "runs.jsonl, line 2, cannot be read" in told and "line 3, cannot be read" in told
    table.pack()
    assert seeds(table) == [0, 2] and len(table.growing.read_text().splitlines()) == 2


def test_a_table_that_is_damaged_is_not_packed_over(table: RunTable) -> None:
    table.append(run(0))
    table.pack()
    whole = table.packed.read_bytes()
    table.packed.write_bytes(whole[: len(whole) // 2])
    table.append(run(1))
    with pytest.raises(RecordError, match="nothing was packed"):
        table.pack()
    assert seeds(table) == [1] and table.packed.read_bytes() == whole[: len(whole) // 2]


def test_a_kill_between_packing_and_removing_doubles_nothing(table: RunTable) -> None:
    for seed in range(2):
        table.append(run(seed))
    growing = table.growing.read_bytes()
    table.pack()
    table.growing.write_bytes(growing)
    assert seeds(table) == [0, 1]
    table.pack()
    assert seeds(table) == [0, 1]


# Appends runs without end and reports each that has returned; the parent kills it after some.
WRITER = """
import json, sys
from pathlib import Path
from pathsgd_lab.sweep.results import RunTable
table, run = RunTable(Path(sys.argv[1])), json.loads(sys.argv[2])
first, last = map(int, sys.argv[3:])
for seed in range(first, last):
    run["spec"]["seed"] = seed
    print(seed, flush=True)
    table.append(run)
    if seed % 7 == 0:
        table.pack()
"""


def writer(table: RunTable, first: int, last: int) -> subprocess.Popen[str]:
    words = [str(table.folder), json.dumps(run(0)), str(first), str(last)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *words], stdout=subprocess.PIPE, text=True
    )


def test_kill_9_loses_no_finished_run(table: RunTable) -> None:
    for sitting in range(4):
        with writer(table, 1000 * sitting, 10**9) as process:
            assert process.stdout is not None
            begun = [int(process.stdout.readline()) for _ in range(9 + 4 * sitting)]
            process.send_signal(signal.SIGKILL)
            begun += [int(line) for line in process.stdout.read().split()]
        assert process.returncode == -signal.SIGKILL
        finished = set(begun[:-1])  # the last one may have been under way
        assert finished <= set(seeds(table))
    table.append(run(5))
    assert 5 in seeds(table)
    table.pack()
    assert 5 in seeds(table)


def test_two_writers_at_once_lose_nothing(table: RunTable) -> None:
    writers = [writer(table, 1000 * i, 1000 * i + 40) for i in range(2)]
    for process in writers:
        process.communicate(timeout=100)
        assert process.returncode == 0
    assert sorted(seeds(table)) == [*range(40), *range(1000, 1040)]

"""Damaged files of every kind that the lab reads: the right content, or an error with the name."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import logging
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathsgd_lab.errors import DataError, LabError
from pathsgd_lab.report.page import Placed
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.listeners import Status, StatusFile
from pathsgd_lab.run.log import RunLog
from pathsgd_lab.run.record import Record, read_record
from pathsgd_lab.run.spec import RunSpec, default_spec, read_spec, spec_to_json
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.sections import sections
from pathsgd_lab.sweep.results import RunTable
from pathsgd_lab.tasks import PtbCharTask, PtbWordTask, SequentialMnistTask, Task, Text8Task
from support.data import list_checksums
from support.fuzz import fuzzed

STUDIES = Studies()


def lines_of(study: str, count: int) -> list[bytes]:
    """The first runs of a study."""
    with gzip.open(STUDIES.runs(study).packed) as file:
        return [line for line, _ in zip(file, range(count))]


(RECORD,), (MEASUREMENT,) = lines_of("smnist", 1), lines_of("kappa-ratios", 1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Damage is told of in the log."""
    caplog.set_level(logging.CRITICAL)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file's bytes after a few accidents: bits flipped, pieces lost, doubled, moved, replaced."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([1, 1, 2, 4, 16, 200, 10**9])))
        kind = draw(st.sampled_from(["flip", "lose", "double", "replace", "cut"]))
        if kind == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "lose":
            del content[start:end]
        elif kind == "double":
            content[start:start] = content[start:end]
        elif kind == "replace":
            content[start:end] = draw(st.binary(max_size=40))
        else:
            del content[start:]
    return bytes(content)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["nan", "-inf"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def misshapen(draw: st.DrawFn, whole: Any) -> bytes:
    """JSON with another value, or none, in one of its places."""
    content = json.loads(json.dumps(whole))
    place, steps = content, draw(st.integers(1, 4))
    for step in range(steps):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if step == steps - 1 or not isinstance(place[key], (dict, list)):
            if isinstance(place, dict) and draw(st.booleans()):
                value = place.pop(key)
                if draw(st.booleans()):
                    place[draw(st.text(max_size=8))] = value
            else:
                place[key] = draw(VALUES)
            break
        place = place[key]
    return json.dumps(content, allow_nan=True).encode()


def json_files(whole: bytes) -> st.SearchStrategy[bytes]:
    return (
        damaged(whole)
        | misshapen(json.loads(whole))
        | VALUES.map(lambda value: json.dumps(value).encode())
    )


def told(read: Callable[[Path], Any], path: Path, content: bytes) -> Any:
    """What is read, or None where an error of one line named the file."""
    path.write_bytes(content)
    try:
        return read(path)
    except LabError as error:
        message = str(error)
    assert path.name in message
    return None


SPEC = json.dumps(spec_to_json(default_spec("adding", "rnn_path"))).encode()


@fuzzed(0.06)
@given(content=json_files(SPEC))
def test_specs(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = told(read_spec, tmp_path_factory.getbasetemp() / "spec.json", content)
    assert found is None or isinstance(found, RunSpec)


@fuzzed(0.06)
@given(content=json_files(RECORD))
def test_records(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = told(read_record, tmp_path_factory.getbasetemp() / "record.json", content)
    assert found is None or isinstance(found, Record)


@fuzzed(0.02)
@given(content=json_files(MEASUREMENT))
def test_measurements(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    table = RunTable(tmp_path_factory.getbasetemp() / "measured", STUDIES["kappa-ratios"].read)
    table.folder.mkdir(exist_ok=True)
    table.growing.write_bytes(MEASUREMENT + content.replace(b"\n", b" ") + b"\n" + MEASUREMENT)
    assert len(table.filed()) in (1, 2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of every experiment, and of a sweep."""
    place = tmp_path_factory.mktemp("results")
    for folder in (
        "smnist",
        "kappa-ratios",
        "ptb-word",
        "adding",
        "text8",
        "ptb-char",
        "cost",
        "badly-scaled-text",
    ):
        (place / folder).mkdir()
        (place / folder / "runs.jsonl").write_bytes(b"".join(lines_of(folder, 3)))
    return place


@fuzzed(0.02)
@given(data=st.data())
def test_one_damaged_record_does_not_stop_a_page(data: st.DataObject, results: Path) -> None:
    victim = data.draw(st.sampled_from(sorted(results.rglob("*.jsonl"))))
    whole = victim.read_bytes()
    first, *others = whole.splitlines(keepends=True)
    try:
        damaged = data.draw(misshapen(json.loads(first)))
        victim.write_bytes(damaged + b"\n" + b"".join(others))
        for number, section in enumerate(sections(Studies(results=results))):
            assert Placed(f"s{number}", section).drawings is not None
    finally:
        victim.write_bytes(whole)


LINES = b"".join(
    json.dumps({"kind": "evaluation", "step": n, "metrics": {"valid": 0.5}}).encode() + b"\n"
    for n in range(5)
)


@fuzzed(0.03)
@given(content=damaged(LINES))
def test_logs(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "record.jsonl"
    path.write_bytes(content)
    RunLog(path).rewind(3)
    assert all(
        isinstance(line["kind"], str) and line.get("step", 0) <= 3 for line in RunLog(path).read()
    )


STATUS = (
    b'{"step": 5, "progress": 0.5, "loss": "nan", "length": 4, '
    b'"metric": null, "cpu_seconds": 1.0, "pid": 3}'
)


@fuzzed(0.01)
@given(content=json_files(STATUS))
def test_statuses(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "status.json"
    path.write_bytes(content)
    assert isinstance(StatusFile.read(path), (Status, type(None)))


TREE: dict[str, Any] = {
    "step": 3,
    "model": {"w": torch.arange(6.0).view(2, 3)},
    "best": None,
    "curve": [{"a": 0.5}],
    "state": (1, 2),
}


@fuzzed(0.05)
@given(data=st.data())
def test_checkpoints_are_whole_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = checkpoint.save(tmp_path_factory.getbasetemp(), 3, TREE)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = told(checkpoint.read, path, path.read_bytes())
    if found is not None:
        assert torch.equal(found.pop("model")["w"], TREE["model"]["w"])
        assert found == {name: value for name, value in TREE.items() if name != "model"}


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}i", 2048 + array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def archive(text: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("text8", text)
    return content.getvalue()


TEXT = b"the quick brown fox jumps over the lazy dog " * 20
DATA: dict[str, tuple[Task, dict[str, bytes]]] = {
    "mnist": (
        SequentialMnistTask(valid_size=2),
        {
            f"mnist/{kind}-{name}": idx(np.arange(count).reshape(shape) % 10)
            for kind in ("train", "t10k")
            for name, count, shape in (
                ("images-idx3-ubyte.gz", 6 * 784, (6, 28, 28)),
                ("labels-idx1-ubyte.gz", 6, (6,)),
            )
        },
    ),
    "words": (
        PtbWordTask(window=2),
        {f"ptb/ptb.{s}.txt": b" a b c \n b a \n" for s in ("train", "valid", "test")},
    ),
    "characters": (
        PtbCharTask(window=2),
        {f"ptb/ptb.{s}.txt": b" a b c \n" * 4 for s in ("train", "valid", "test")},
    ),
    "text8": (Text8Task(limit=300), {"text8/text8.zip": archive(TEXT)}),
    "prefix": (Text8Task(limit=300), {"text8/text8.first74000000.bz2": bz2.compress(TEXT)}),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str, tmp_path: Path) -> None:
    """Damaged data is refused by checksum; listed as own data, it is read or refused clearly."""
    task, files = DATA[name]

    @fuzzed(0.01)
    @given(data=st.data())
    def try_one(data: st.DataObject) -> None:
        for place, content in files.items():
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).write_bytes(content)
        victim = tmp_path / data.draw(st.sampled_from(sorted(files)))
        list_checksums(victim.parent)
        whole = victim.read_bytes()
        victim.write_bytes(data.draw(damaged(whole)))
        if victim.read_bytes() != whole:
            with pytest.raises(DataError, match="is damaged"):
                task.prepare(tmp_path)
        list_checksums(victim.parent)
        with contextlib.suppress(DataError):
            task.prepare(tmp_path)

    try_one()


SUMS = b"0" * 64 + b"  ptb.train.txt\n"


@fuzzed(0.01)
@given(content=damaged(SUMS))
def test_lists_of_checksums(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "ptb"
    folder.mkdir(exist_ok=True)
    (folder / "ptb.train.txt").write_bytes(b"a")
    (folder / "SHA256SUMS").write_bytes(content)
    with pytest.raises(DataError):
        PtbWordTask().prepare(folder.parent)

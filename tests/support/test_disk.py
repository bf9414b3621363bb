"""The model of a disk: what is flushed is kept, of files and of names apart."""

import errno
import os
from pathlib import Path

import pytest

from pathsgd_lab.files import append_text, write_file
from support.disk import Recorder, Stop, after


def left(start: Path, recorder: Recorder, count: int, stop: Stop, target: Path) -> dict[str, bytes]:
    after(start, recorder.changes, count, stop, target)
    return {path.name: path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("killed", [{}, {"t": b""}, {"t": b"new"}, {"t": b"new"}, {"f": b"new"}, {"f": b"new"}]),
        ("torn", [{}, {"t": b"n"}, {"t": b"new"}, {"t": b"new"}, {"f": b"new"}, {"f": b"new"}]),
        ("cut", [{}, {}, {}, {}, {}, {"f": b"new"}]),
        ("renamed", [{}, {"t": b""}, {"t": b""}, {"t": b"new"}, {"f": b"new"}, {"f": b"new"}]),
    ],
)
def test_what_is_left_of_a_file_written_with_care(
    stop: Stop, expected: list[dict[str, bytes]], tmp_path: Path
) -> None:
    place, start = tmp_path / "place", tmp_path / "start"
    place.mkdir(), start.mkdir()
    with Recorder(place) as recorder:
        write_file(place / "f", b"new")
    assert [change.call for change in recorder.changes] == [
        "open",
        "write",
        "fsync",
        "replace",
        "fsync",
    ]
    found = [left(start, recorder, count, stop, tmp_path / str(count)) for count in range(6)]
    assert [{name[-1]: content for name, content in files.items()} for files in found] == [
        {("p" if name == "t" else name): content for name, content in files.items()}
        for files in expected
    ]


def test_lines_added_to_a_log_are_kept_only_when_flushed(tmp_path: Path) -> None:
    place, start = tmp_path / "place", tmp_path / "start"
    place.mkdir(), start.mkdir()
    for folder in (place, start):
        (folder / "log").write_bytes(b"one\n")
    with Recorder(place) as recorder:
        append_text(place / "log", "two\n")
    assert left(start, recorder, 2, "killed", tmp_path / "a") == {"log": b"one\ntwo\n"}
    assert left(start, recorder, 2, "cut", tmp_path / "b") == {"log": b"one\n"}


def test_a_call_fails_once_or_from_then_on_and_leaves_no_file(tmp_path: Path) -> None:
    for lasting in (False, True):
        with Recorder(tmp_path, 2, errno.EIO, lasting) as recorder:
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                write_file(tmp_path / "f", b"new")
            assert [change.call for change in recorder.changes] == ["open", "write", "unlink"]
            if lasting:
                with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                    write_file(tmp_path / "f", b"new")
            else:
                write_file(tmp_path / "f", b"new")
        assert {path.name for path in tmp_path.iterdir()} == {"f"}, "the one that was written"

"""Files whole or not there: what write_file, move and remove promise."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pathsgd_lab.files import flush, make_folder, move, remove, remove_tree, write_file, write_text


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"", b"one", b"two" * 100_000):
        write_file(tmp_path / "a" / "b" / "file", content)
        assert (tmp_path / "a" / "b" / "file").read_bytes() == content
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "file", b"old")
    real = os.write
    monkeypatch.setattr(
        os, "write", lambda handle, content: real(handle, content[: len(content) // 2 + 1])
    )
    write_file(tmp_path / "file", b"written in pieces")
    assert (tmp_path / "file").read_bytes() == b"written in pieces"

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "file": b"written in pieces"
    }


def test_text_that_utf8_lacks_is_written_all_the_same(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "caf\udce9 é")
    assert (tmp_path / "file").read_bytes() == "caf\\udce9 é".encode()


@pytest.mark.parametrize(
    ("number", "raises"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_a_folder_that_cannot_be_flushed_at_all_is_no_error(
    number: int, raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    if raises:
        with pytest.raises(OSError, match=os.strerror(number)):
            flush(tmp_path)
    else:
        flush(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=os.strerror(number)):
        flush(tmp_path / "file")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="a file is where a folder should be"):
            make_folder(place)


def test_trees_are_moved_and_removed_and_links_not_followed(tmp_path: Path) -> None:
    outside, tree, target = tmp_path / "outside", tmp_path / "tree", tmp_path / "target"
    for folder in (outside, tree / "inner", target):
        folder.mkdir(parents=True)
    (outside / "kept").write_text("mine")
    (tree / "inner" / "file").write_text("")
    (tree / "link").symlink_to(outside)
    (tree / "moved").write_text("moved")
    move([tree / "moved"], target)
    assert (target / "moved").read_text() == "moved"
    remove_tree(tree)
    remove([tree / "nothing"])
    remove_tree(tree)
    assert not tree.exists() and (outside / "kept").read_text() == "mine"

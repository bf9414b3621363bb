"""A disk that remembers what it was told, to ask what is left of it after a stop at any moment.

    with Recorder(folder) as recorder: ...    every change below the folder, in order
    after(start, changes, count, stop)        the files left by a stop after ``count`` changes

A stop is one of

    killed      the process dies: everything that was written is there
    torn        the process dies in the middle of the next write: half of it is there
    cut         the power fails: only what was flushed is there, of files and of names in folders
    renamed     the power fails: all names are there, but of contents only what was flushed

The model knows inodes: ``fsync`` of a file keeps its bytes, ``fsync`` of a folder keeps the names
in it; nothing else is durable.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

Stop = Literal["killed", "torn", "cut", "renamed"]
STOPS: tuple[Stop, ...] = ("killed", "torn", "cut", "renamed")
CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")
NEEDS_THE_DISK = ("open", "write", "fsync", "replace", "rename", "mkdir")


@dataclass(frozen=True)
class Change:
    """One call that changes the disk, or makes a change last."""

    call: str
    paths: tuple[str, ...]
    """Relative to the folder; "." is the folder itself."""
    content: bytes = b""
    truncates: bool = False


class Recorder:
    """Records every change below a folder; if asked, the ``fail_at``-th and later ones fail.

    fail_at: number of the first call that fails, counted from 0, with ``error``.
    lasting: whether all calls after it that need room on the disk fail too.
    """

    def __init__(
        self,
        folder: Path,
        fail_at: int | None = None,
        error: int = errno.ENOSPC,
        lasting: bool = False,
    ):
        self.folder, self.fail_at, self.error, self.lasting = (
            folder.absolute(),
            fail_at,
            error,
            lasting,
        )
        self.changes: list[Change] = []
        self._names: dict[int, str] = {}
        self._patches: list[Any] = []

    def __enter__(self) -> Recorder:
        for call in CALLS:
            patch = mock.patch.object(os, call, self._wrapped(call, getattr(os, call)))
            patch.start()
            self._patches.append(patch)
        return self

    def __exit__(self, *error: object) -> None:
        for patch in reversed(self._patches):
            patch.stop()

    def _relative(self, path: Any) -> str | None:
        if not isinstance(path, (str, os.PathLike)):
            return None
        whole = Path(os.path.abspath(os.fspath(path)))
        if whole.name == "lock" or not whole.is_relative_to(self.folder):
            return None
        return whole.relative_to(self.folder).as_posix()

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **named: Any) -> Any:
            change = self._change(call, args)
            if change is not None:
                self._fail(call, change.paths[-1])
            result = real(*args, **named)
            if call == "open":
                self._names[result] = self._relative(args[0]) or ""
            if change is not None:
                self.changes.append(change)
            return result

        return wrapper

    def _change(self, call: str, args: tuple[Any, ...]) -> Change | None:
        if call in ("write", "fsync"):
            name = self._names.get(args[0])
            content = bytes(args[1]) if call == "write" else b""
            return Change(call, (name,), content) if name else None
        names = tuple(
            self._relative(path) for path in args[: 2 if call in ("replace", "rename") else 1]
        )
        if None in names:
            return None
        if call == "open":
            if not args[1] & (os.O_WRONLY | os.O_RDWR):
                return None
            return Change(call, names, truncates=bool(args[1] & os.O_TRUNC))  # type: ignore[arg-type]
        return Change(call, names)  # type: ignore[arg-type]

    def _fail(self, call: str, path: str) -> None:
        if self.fail_at is None or call not in NEEDS_THE_DISK:
            return
        number = sum(change.call in NEEDS_THE_DISK for change in self.changes)
        if number == self.fail_at or (self.lasting and number > self.fail_at):
            if not self.lasting:
                self.fail_at = None
            raise OSError(self.error, os.strerror(self.error), path)


@dataclass
class File:
    """Bytes as the process sees them, and as the disk has them."""

    seen: bytes = b""
    kept: bytes = b""


@dataclass
class Folder:
    """Names as the process sees them, and as the disk has them."""

    seen: dict[str, File | Folder] = field(default_factory=dict)
    kept: dict[str, File | Folder] = field(default_factory=dict)

    def find(self, path: str) -> File | Folder:
        """What lies at a path."""
        node: File | Folder = self
        for part in Path(path).parts:
            assert isinstance(node, Folder)
            node = node.seen[part]
        return node

    def parent(self, path: str) -> tuple[Folder, str]:
        """The folder a path is in, and its name there."""
        node = self.find(Path(path).parent.as_posix())
        assert isinstance(node, Folder)
        return node, Path(path).name


def as_folder(place: Path) -> Folder:
    """The tree below a place, all of it on the disk."""
    folder = Folder()
    for path in place.iterdir() if place.is_dir() else ():
        if path.name != "lock":
            content = path.read_bytes() if path.is_file() else b""
            folder.seen[path.name] = as_folder(path) if path.is_dir() else File(content, content)
    folder.kept = dict(folder.seen)
    return folder


def apply(root: Folder, change: Change) -> None:
    """One change."""
    last = change.paths[-1]
    if change.call == "fsync":
        node = root.find(last)
        node.kept = dict(node.seen) if isinstance(node, Folder) else node.seen  # type: ignore[assignment]
        return
    folder, name = root.parent(last)
    if change.call == "open":
        node = folder.seen.setdefault(name, File())
        if change.truncates:
            node.seen = b""
    elif change.call == "write":
        file = folder.seen[name]
        assert isinstance(file, File)
        file.seen += change.content
    elif change.call == "mkdir":
        folder.seen[name] = Folder()
    elif change.call in ("replace", "rename"):
        source, old = root.parent(change.paths[0])
        folder.seen[name] = source.seen.pop(old)
    else:
        del folder.seen[name]


def after(start: Path, changes: list[Change], count: int, stop: Stop, target: Path) -> None:
    """Write into ``target`` what a stop after ``count`` changes to the tree at ``start`` leaves."""
    root = as_folder(start)
    for change in changes[:count]:
        apply(root, change)
    if stop == "torn" and count < len(changes) and changes[count].call == "write":
        whole = changes[count]
        apply(root, Change(whole.call, whole.paths, whole.content[: len(whole.content) // 2]))
    _write(root, target, names_kept=stop == "cut", bytes_kept=stop in ("cut", "renamed"))


def _write(folder: Folder, place: Path, names_kept: bool, bytes_kept: bool) -> None:
    place.mkdir(parents=True)
    for name, node in (folder.kept if names_kept else folder.seen).items():
        if isinstance(node, Folder):
            _write(node, place / name, names_kept, bytes_kept)
        else:
            (place / name).write_bytes(node.kept if bytes_kept else node.seen)

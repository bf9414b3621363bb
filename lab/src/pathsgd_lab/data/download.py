"""Downloads of data files, continued after any interruption.

A file appears under its name only when it is complete and its checksum is right.  An interrupted
download is kept as ``<name>.part`` and continued by the next call; a download with a wrong checksum
is deleted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pooch
import requests

from pathsgd_lab.data.files import DATA_SETS, DataFile, data_directory, sha256_of
from pathsgd_lab.errors import DataError

ATTEMPTS_PER_MIRROR = 3
RETRY_SECONDS = 0.5
CHUNK_BYTES = 1 << 16
TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, between two packets

Progress = Callable[[DataFile, int], None]
"""Called with the file and the bytes there so far."""


def fetch(
    name: str, directory: Path | str | None = None, progress: Progress | None = None
) -> list[Path]:
    """Download what is missing or wrong of a data set; the paths of all its files."""
    if name not in DATA_SETS:
        raise DataError(f"unknown data set {name!r}; choose one of {', '.join(DATA_SETS)}")
    return [fetch_file(file, data_directory(directory), progress) for file in DATA_SETS[name].files]


def fetch_file(file: DataFile, directory: Path, progress: Progress | None = None) -> Path:
    """Download one file, unless it is here, from the first mirror that has the right bytes."""
    path = file.below(directory)
    if not file.urls and not path.exists():
        raise DataError(
            f"{file.path} has no address to fetch it from: put it into {directory} yourself"
        )
    # pooch compares checksums, and moves a finished download into place in one step. Its messages
    # are ours to give.
    pooch.get_logger().setLevel(logging.ERROR)
    failures = []
    for url in file.urls:
        downloader = ResumingDownloader(file, path, progress)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pooch.retrieve(
                url, f"sha256:{file.sha256}", path.name, path.parent, downloader=downloader
            )
            return path
        except requests.RequestException as error:  # before OSError, which it is a kind of
            failures.append(f"{url}: {error}")
        except (DataError, ValueError) as error:
            failures.append(f"{url}: {error}")
        except OSError as error:
            raise DataError(
                f"cannot write {path} ({error.strerror or error}): choose another --data-dir"
            ) from error
    raise DataError(f"{file.path} could not be fetched. " + "; ".join(failures))


class ResumingDownloader:
    """Downloads into ``<name>.part``, continuing an earlier part, then hands the file over.

    Called by pooch with the address and a temporary file of its own; pooch then compares the
    checksum.
    """

    def __init__(self, file: DataFile, path: Path, progress: Progress | None) -> None:
        self.file, self.progress = file, progress
        self.part = path.with_name(path.name + ".part")

    def __call__(
        self, url: str, output_file: str | Path, pooch: object, check_only: bool = False
    ) -> None:
        """Fetch ``url`` into ``output_file``, in several attempts if the connection breaks."""
        for attempt in range(ATTEMPTS_PER_MIRROR):
            if attempt:
                time.sleep(RETRY_SECONDS * attempt)
            left_by_earlier_call = attempt == 0 and self._bytes_there() > 0
            try:
                self._append_rest(url)
            except (
                requests.ConnectionError,
                requests.Timeout,
                requests.exceptions.ChunkedEncodingError,
            ):
                if attempt + 1 == ATTEMPTS_PER_MIRROR:
                    raise
                continue
            if left_by_earlier_call and sha256_of(self.part) != self.file.sha256:
                # What an earlier call left was not the beginning of this file: a fresh start may
                # still succeed.
                self.part.unlink()
            elif self._bytes_there() == self.file.size:
                os.replace(self.part, output_file)
                return
        raise DataError(f"the download ends after {self._bytes_there()} of {self.file.size} bytes")

    def _bytes_there(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _append_rest(self, url: str) -> None:
        """One request for the rest of the part, or for all of it where the server has no ranges."""
        start = self._bytes_there()
        if start >= self.file.size:
            return
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            response.raise_for_status()
            continues = response.status_code == 206 and response.headers.get(
                "Content-Range", ""
            ).startswith(f"bytes {start}-")
            there = start if continues else 0
            with self.part.open("ab" if continues else "wb") as out:
                for chunk in response.iter_content(CHUNK_BYTES):
                    there += len(chunk)
                    if there > self.file.size:
                        self.part.unlink()
                        raise DataError(
                            f"the server sends more than the expected {self.file.size} bytes"
                        )
                    out.write(chunk)
                    if self.progress is not None:
                        self.progress(self.file, there)

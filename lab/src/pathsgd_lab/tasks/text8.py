"""text8 (Mahoney): predict the next of 27 symbols, space and a to z (bits per character).

The whole file has 100,000,000 characters, split 90 / 5 / 5 million in order (Mikolov et al., 2012).
Where only its first 74,000,000 characters are at hand, the last 4 and the 4 million before them
serve as test and validation text and
the first 66 million as training text: figures from that split are near, but not the same as,
figures from the whole. The paper trains on windows of 180 steps with 2048 units (LSTM: 1024); the
batch size is ours.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
import torch

from pathsgd_lab.data.files import TEXT8_PREFIX, TEXT8_ZIP, damaged, data_directory, verified
from pathsgd_lab.tasks.base import Metric, PaperSettings
from pathsgd_lab.tasks.text import CHARACTERS, TextData, TextTask

UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError,
    ValueError,
)  # fmt: skip
"""What a damaged archive may raise: one flipped bit makes it encrypted, or compressed in another
way."""
FULL_LENGTH, FULL_HELD_OUT = 100_000_000, 5_000_000
PREFIX_LENGTH, PREFIX_HELD_OUT = 74_000_000, 4_000_000


@dataclass(frozen=True)
class Text8Task(TextTask):
    """Next character of Wikipedia text (bits per character; chance is log2 27 = 4.75)."""

    name: ClassVar[str] = "text8"
    title: ClassVar[str] = "text8"
    metric: ClassVar[Metric] = "bpc"
    data_set: ClassVar[str | None] = "text8"
    paper: ClassVar[PaperSettings] = CHARACTERS

    window: int = 180
    """Steps of back-propagation; the state is carried on."""
    limit: int = 0
    """Use only the first so many characters, a tenth of them for validation and a tenth for test;
    0: all."""

    @property
    def vocabulary(self) -> int:
        """Space and the letters."""
        return 27

    def prepare(self, data_dir: Path | str | None = None) -> TextData:
        """Read the whole file or, where there is none, the prefix."""
        directory = data_directory(data_dir)
        whole = TEXT8_ZIP.below(directory).is_file() or not TEXT8_PREFIX.below(directory).is_file()
        file = TEXT8_ZIP if whole else TEXT8_PREFIX
        path = verified("text8", PurePosixPath(file.path).name, directory)
        if whole:
            text, held_out = read_zip(path, self.limit or FULL_LENGTH), FULL_HELD_OUT
        else:
            text, held_out = read_bz2(path, self.limit or PREFIX_LENGTH), PREFIX_HELD_OUT
        symbols = text_symbols(text, path)
        if self.limit:
            held_out = len(symbols) // 10
        train, valid, test = symbols.tensor_split(
            (len(symbols) - 2 * held_out, len(symbols) - held_out)
        )
        return TextData(self, {"train": train, "valid": valid, "test": test})


def read_zip(path: Path, length: int) -> bytes:
    """The first ``length`` bytes of the member ``text8``; no path in the archive is used."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("text8") as stream:
            text = stream.read(length)
    except KeyError:
        raise damaged("text8", path, "it has no member text8") from None
    except UNREADABLE as error:
        raise damaged("text8", path, error) from error
    return _all_of(text, length, path)


def read_bz2(path: Path, length: int) -> bytes:
    """The first ``length`` bytes of a bzip2 file."""
    try:
        with bz2.open(path) as stream:
            text = stream.read(length)
    except (OSError, EOFError) as error:
        raise damaged("text8", path, error) from error
    return _all_of(text, length, path)


def _all_of(text: bytes, length: int, path: Path) -> bytes:
    if len(text) != length:
        raise damaged("text8", path, f"{len(text)} of {length} characters")
    return text


def text_symbols(text: bytes, path: Path) -> torch.Tensor:
    """Space is 0, a to z are 1 to 26; bytes, to hold a hundred million of them."""
    table = np.full(256, 255, dtype=np.uint8)
    table[ord(" ")] = 0
    table[ord("a") : ord("z") + 1] = np.arange(1, 27)
    symbols = table[np.frombuffer(text, dtype=np.uint8)]
    if (symbols == 255).any():
        raise damaged("text8", path, "characters other than space and a to z")
    return torch.from_numpy(symbols)

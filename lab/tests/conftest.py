"""Small data sets in the real files' formats, made on the spot."""

import bz2
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from support.data import list_checksums

TRAIN_IMAGES, TEST_IMAGES = 60, 20
WORDS = ["the", "cat", "sat", "on", "a", "mat", "<unk>", "N", "dog", "ran"]


def write_idx(path: Path, array: np.ndarray) -> None:
    """An idx file: magic number, sizes, bytes, gzipped."""
    header = struct.pack(f">{1 + array.ndim}i", 2048 + array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def write_mnist(directory: Path) -> None:
    """Images with one bright block whose place tells the class."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for kind, count in (("train", TRAIN_IMAGES), ("t10k", TEST_IMAGES)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 30, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4, 4:24] = 250
        write_idx(directory / f"{kind}-images-idx3-ubyte.gz", images)
        write_idx(directory / f"{kind}-labels-idx1-ubyte.gz", labels)


def write_ptb(directory: Path) -> None:
    """Sentences of ten words, with the outer spaces of the real files."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for split, lines in (("train", 200), ("valid", 40), ("test", 30)):
        text = "".join(
            f" {' '.join(rng.choice(WORDS, rng.integers(3, 9)))} \n" for _ in range(lines)
        )
        (directory / f"ptb.{split}.txt").write_text(text)


def write_text8_prefix(directory: Path) -> None:
    """A short stand-in for the first characters of text8 (read with the task's ``limit``)."""
    directory.mkdir(parents=True)
    text = "".join(WORDS[i % 5] + " " for i in range(2_000))
    (directory / "text8.first74000000.bz2").write_bytes(bz2.compress(text.encode()))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a little of everything."""
    directory = tmp_path_factory.mktemp("data")
    write_mnist(directory / "mnist")
    write_ptb(directory / "ptb")
    write_text8_prefix(directory / "text8")
    for folder in directory.iterdir():
        list_checksums(folder)
    return directory

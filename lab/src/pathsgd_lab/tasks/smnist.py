"""Sequential MNIST (Le et al., 2015): the class of a digit that is read one pixel at a time.

The 28 x 28 image is one sequence of 784 steps, row by row, pixel values in [0, 1].  Permuted MNIST
reads the pixels in one fixed random order, the same for every image.  Shorter sequences come from
averaging k x k pixels: k = 2 gives 196 steps, k = 4 gives 49, k = 7 gives 16; a curriculum may go
through them.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pathsgd_lab.data.files import damaged, data_directory, verified
from pathsgd_lab.errors import DataError
from pathsgd_lab.tasks.base import Batch, BatchStream, Metric, PaperSettings, Split, Task, TaskData
from pathsgd_lab.tasks.sampling import ShuffledIndices, generator_for

SIDE = 28
MOST_COMPRESSION = 1032  # deflate makes at most so many bytes of one
IDX_MAGIC = {1: 2049, 3: 2051}  # by number of dimensions: unsigned bytes in the idx format


@dataclass(frozen=True)
class SequentialMnistTask(Task):
    """Handwritten digits, one pixel per step (error in per cent; chance is 90)."""

    name: ClassVar[str] = "smnist"
    title: ClassVar[str] = "Sequential MNIST"
    metric: ClassVar[Metric] = "error_percent"
    data_set: ClassVar[str | None] = "mnist"
    paper: ClassVar[PaperSettings] = PaperSettings(batch_size=100)
    input_size = 1
    """One pixel."""
    solved: ClassVar[float | None] = 12.0
    """A linear classifier on the whole image reaches 12.0 % (LeCun et al., 1998)."""

    subsample: int = 1
    """k: average k x k pixels into one (1, 2, 4, 7 or 14), for (28/k)^2 steps."""
    valid_size: int = 5_000
    """Images taken from the end of the training file for validation."""
    limit: int = 0
    """Use only the first so many images of each file, for a quick trial; 0: all."""

    def __post_init__(self) -> None:
        if self.subsample < 1 or SIDE % self.subsample:
            raise ValueError(
                f"subsample must divide {SIDE}: 1, 2, 4, 7 or 14, got {self.subsample}"
            )
        if self.valid_size < 0 or self.limit < 0:
            raise ValueError("valid_size and limit cannot be negative")

    @property
    def output_size(self) -> int:
        """Ten digits."""
        return 10

    @property
    def length(self) -> int:
        """Pixels of the (averaged) image."""
        return (SIDE // self.subsample) ** 2

    @property
    def chance(self) -> float:
        """Nine in ten wrong."""
        return 90.0

    def targets(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Targets for images (B, T) in reading order: their classes (B,)."""
        return labels

    def pixel_order(self, length: int) -> Tensor | None:
        """Reading order of the pixels of an image of ``length`` pixels; None: as they come."""
        return None

    def prepare(self, data_dir: Path | str | None = None) -> MnistData:
        """Read the four files of MNIST."""
        return MnistData(self, data_directory(data_dir))


@dataclass(frozen=True)
class PermutedMnistTask(SequentialMnistTask):
    """Handwritten digits, one pixel per step in a fixed random order (error in per cent)."""

    name: ClassVar[str] = "psmnist"
    title: ClassVar[str] = "Permuted MNIST"

    permutation_seed: int = 92_916
    """Decides the order of the pixels; not the run's seed, so that runs with different seeds share
    the task."""

    def pixel_order(self, length: int) -> Tensor:
        """A permutation that depends on ``permutation_seed`` and the length only."""
        return torch.randperm(length, generator=generator_for(self.permutation_seed, length))


def read_idx(path: Path, dimensions: int, limit: int) -> Tensor:
    """At most ``limit`` rows of a gzipped idx file: big-endian magic number, sizes, bytes."""
    header_bytes = 4 * (1 + dimensions)
    try:
        with gzip.open(path, "rb") as stream:
            header = np.frombuffer(stream.read(header_bytes), dtype=">i4")
            if header.size != 1 + dimensions or header[0] != IDX_MAGIC[dimensions]:
                raise damaged("mnist", path, "not an idx file of the expected kind")
            shape = [int(size) for size in header[1:]]
            if min(shape) < 1 or math.prod(shape) > MOST_COMPRESSION * path.stat().st_size:
                raise damaged(
                    "mnist", path, f"its header says {shape}, which such a file cannot hold"
                )
            if limit:
                shape[0] = min(shape[0], limit)
            content = stream.read(math.prod(shape))
            if not limit and stream.read(1):  # only at its end does gzip compare its own checksum
                raise damaged("mnist", path, f"more than the {shape} bytes that its header says")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged("mnist", path, error) from error
    if len(content) != math.prod(shape):
        raise damaged(
            "mnist", path, f"{len(content)} bytes of data where its header says {math.prod(shape)}"
        )
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(shape).copy())


class Images:
    """Images (N, 28, 28) and labels (N,), served as sequences of any possible length."""

    def __init__(self, task: SequentialMnistTask, images: Tensor, labels: Tensor) -> None:
        self.task = task
        self.pixels = images.reshape(len(images), SIDE * SIDE)
        self.labels = labels.long()
        self._orders: dict[int, Tensor | None] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, length: int) -> Batch:
        """Sequences (T, B, 1) of these images."""
        pixels = self.pixels[indices].float().div_(255.0)
        if length != SIDE * SIDE:
            side = math.isqrt(length)
            k = SIDE // side
            pixels = pixels.view(-1, side, k, side, k).mean((2, 4)).flatten(1)
        if length not in self._orders:
            self._orders[length] = self.task.pixel_order(length)
        order = self._orders[length]
        if order is not None:
            pixels = pixels[:, order]
        targets = self.task.targets(pixels, self.labels[indices])
        return Batch(pixels.t().contiguous().unsqueeze(-1), targets, carry=False)


class MnistStream(BatchStream):
    """Shuffled epochs."""

    def __init__(self, images: Images, length: int, batch_size: int, seed: int) -> None:
        self.images, self.length = images, length
        self.indices = ShuffledIndices(len(images), batch_size, seed)

    def next(self) -> Batch:
        """The next batch."""
        return self.images.batch(self.indices.next(), self.length)

    def set_length(self, length: int) -> None:
        """Images averaged down to ``length`` pixels from the next batch on."""
        possible = [(SIDE // k) ** 2 for k in range(1, SIDE + 1) if SIDE % k == 0]
        if length not in possible:
            raise ValueError(
                f"sequential MNIST can have lengths {', '.join(map(str, possible))}, not {length}"
            )
        self.length = length

    @property
    def epoch(self) -> float:
        """Passes over the training images."""
        return self.indices.epoch

    def state_dict(self) -> dict[str, int]:
        """Epoch, position and length."""
        return {**self.indices.state_dict(), "length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` gave."""
        self.indices.load_state_dict(state)
        self.set_length(state["length"])


class MnistData(TaskData):
    """The training file's images but the last ``valid_size``, those, and the test file."""

    task: SequentialMnistTask
    splits = ("train", "valid", "test")

    def __init__(self, task: SequentialMnistTask, directory: Path) -> None:
        super().__init__(task)
        train, test = (self._read(directory, kind) for kind in ("train", "t10k"))
        training = len(train[1]) - task.valid_size
        if training < 1:
            raise DataError(
                f"{len(train[1])} training images leave none with valid_size={task.valid_size}"
            )
        self.sets: dict[str, Images] = {
            "train": Images(task, train[0][:training], train[1][:training]),
            "valid": Images(task, train[0][training:], train[1][training:]),
            "test": Images(task, *test),
        }

    def _read(self, directory: Path, kind: str) -> tuple[Tensor, Tensor]:
        path = verified("mnist", f"{kind}-images-idx3-ubyte.gz", directory)
        images = read_idx(path, 3, self.task.limit)
        labels = read_idx(
            verified("mnist", f"{kind}-labels-idx1-ubyte.gz", directory), 1, self.task.limit
        )
        if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels):
            raise damaged(
                "mnist", path, f"images {tuple(images.shape)} do not go with {len(labels)} labels"
            )
        return images, labels

    def stream(self, batch_size: int, seed: int) -> MnistStream:
        """Shuffled training images."""
        return MnistStream(self.sets["train"], self.task.length, batch_size, seed)

    def eval_batches(self, split: Split, batch_size: int | None = None) -> Iterator[Batch]:
        """The images of a split in the order of their file."""
        self.check_split(split)
        images = self.sets[split]
        for indices in torch.arange(len(images)).split(batch_size or 500):
            yield images.batch(indices, self.task.length)

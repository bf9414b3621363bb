"""Digits through a narrow layer and back: the targets are the pixels that went in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pathsgd_lab.tasks.base import Metric
from pathsgd_lab.tasks.smnist import SequentialMnistTask

VARIANCE = {1: 0.06727, 2: 0.05157, 4: 0.02870, 7: 0.01207, 14: 0.003449}
"""Mean over pixels of their variance over the 55,000 training images, by ``subsample``."""


@dataclass(frozen=True)
class MnistAutoencoderTask(SequentialMnistTask):
    """Reconstruct the image (mean squared error per pixel; chance is the pixels' variance)."""

    name: ClassVar[str] = "mnist_autoencoder"
    title: ClassVar[str] = "MNIST autoencoder"
    metric: ClassVar[Metric] = "mse"
    solved: ClassVar[float | None] = None
    """There is no natural threshold."""

    @property
    def output_size(self) -> int:
        """All pixels."""
        return self.length

    @property
    def chance(self) -> float:
        """Answering the mean image."""
        return VARIANCE.get(self.subsample, 0.0)

    def targets(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """The pixels themselves."""
        return pixels

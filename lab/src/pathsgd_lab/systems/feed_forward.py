"""Nets without recurrence: a dense one, the autoencoder and a small convolutional one.

They read a whole sequence (T, B, I) at once, as one vector of T * I numbers (or as an image), and
answer once; text, which wants an answer at every step, is not for them.  A digit of sequential
MNIST is a sequence of pixels, so that ``mlp`` on ``smnist`` is the usual dense net on MNIST.

Initial values are He's: each layer N(0, 2 / inputs), the readout N(0, 1 / inputs), biases 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System
from pathsgd_lab.tasks.base import State, Task


class FeedForwardNet(SequenceNet):
    """Hidden layers that read the sequence as a whole, and the readout."""

    def __init__(self, task: Task, body: nn.Module, readout_inputs: int) -> None:
        super().__init__(task, readout_inputs)
        self.body = body
        for module in body.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.readout.weight, std=readout_inputs**-0.5)
        nn.init.zeros_(self.readout.bias)

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """The last hidden layer (B, H), or that in a sequence of length 1; there is no state."""
        hidden = self.body(inputs.transpose(0, 1))
        return (hidden.unsqueeze(0) if all_steps else hidden), ()


@dataclass(frozen=True)
class FeedForwardSystem(System):
    """What nets without recurrence share."""

    path_rules: ClassVar[bool] = True
    any_length: ClassVar[bool] = False

    def misfit(self, task: Task) -> str:
        """Text wants an output at every step."""
        if task.tokens or task.every_step:
            return f"{self.name} answers once a sequence; {task.name} wants an answer at every step"
        return ""


def dense(inputs: int, widths: Sequence[int]) -> nn.Sequential:
    """Linear layers, each followed by ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([inputs, *widths], widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class MlpSystem(FeedForwardSystem):
    """Dense ReLU net with hidden layers of one width."""

    name: ClassVar[str] = "mlp"
    title: ClassVar[str] = "MLP"

    layers: int = 3
    """Hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")

    def _build(self, task: Task) -> FeedForwardNet:
        hidden = self.hidden or task.paper.hidden
        return FeedForwardNet(
            task, dense(task.length * task.input_size, [hidden] * self.layers), hidden
        )


@dataclass(frozen=True)
class AutoencoderSystem(FeedForwardSystem):
    """Deep dense ReLU net with a narrow middle: h, h/2, h/4, code, h/4, h/2, h units."""

    name: ClassVar[str] = "autoencoder"
    title: ClassVar[str] = "Autoencoder"

    hidden: int | None = 1000
    """Units of the widest layers; None: the number the paper uses on the task."""
    code: int = 30
    """Units of the narrowest layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.code < 1:
            raise ValueError(f"code must be at least 1, got {self.code}")

    def _build(self, task: Task) -> FeedForwardNet:
        widest = self.hidden or task.paper.hidden
        half = [max(1, widest // k) for k in (1, 2, 4)]
        return FeedForwardNet(
            task, dense(task.length * task.input_size, [*half, self.code, *half[::-1]]), widest
        )


@dataclass(frozen=True)
class CnnSystem(FeedForwardSystem):
    """Two convolutions with pooling and two dense layers, for images read pixel by pixel.

    The shape of the net 2c2d of DeepOBS (Schneider et al., 2019): 5 x 5 kernels, pooling by 2, 32
    and 64 channels, 1024 units.  Deviates: He's initial values.
    """

    name: ClassVar[str] = "cnn"
    title: ClassVar[str] = "CNN 2c2d"

    hidden: int | None = 1024
    """Units of the dense layer; None: the number the paper uses on the task."""
    channels: int = 32
    """Channels of the first convolution; the second has twice as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels < 1:
            raise ValueError(f"channels must be at least 1, got {self.channels}")

    def misfit(self, task: Task) -> str:
        """An image must be square, with two poolings' worth of pixels."""
        side = math.isqrt(task.length)
        if not super().misfit(task) and (
            task.input_size != 1 or side * side != task.length or side < 4
        ):
            return f"{self.name} reads square images of at least 4 x 4 pixels; choose smnist"
        return super().misfit(task)

    def _build(self, task: Task) -> FeedForwardNet:
        side, hidden = math.isqrt(task.length), self.hidden or task.paper.hidden
        body = nn.Sequential(
            nn.Flatten(),
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, self.channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(self.channels, 2 * self.channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *dense(2 * self.channels * (side // 2 // 2) ** 2, [hidden]),
        )
        return FeedForwardNet(task, body, hidden)

"""Tiny models in the styles people write. Parameter names match those of oracle's builders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(widths: Sequence[int], bias: bool = True, inplace: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias), nn.ReLU(inplace)]
    return nn.Sequential(*layers[:-1])


class Apply(nn.Module):
    """A function of the activations as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Between(nn.Module):
    """Linear, ReLU, some operation on (B, *shape), Linear."""

    def __init__(self, operation: Callable[[Tensor], Tensor], shape: Sequence[int] = (4,)) -> None:
        super().__init__()
        self.operation, self.units = operation, tuple(shape)
        self.first = nn.Linear(2, int(torch.tensor(self.units).prod()))
        self.second = nn.Linear(
            operation(torch.rand(1, *self.units, dtype=torch.float64)).numel(), 2
        )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x)).reshape(-1, *self.units)
        return self.second(self.operation(h).reshape(x.shape[0], -1))


class Weights(nn.Module):
    """Free-form: named parameters and a function of (module, *inputs)."""

    def __init__(self, forward: Callable[..., Any], **shapes: Sequence[int]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(*shape)))
        self.function = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class ReadRNN(nn.RNN):
    """torch.nn.RNN with a linear read-out of the last or of every step."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int | None,
        every_step: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(inputs, hidden, nonlinearity="relu", **options)
        self.every_step = every_step
        width = hidden * (2 if self.bidirectional else 1)
        self.out = None if outputs is None else nn.Linear(width, outputs, self.bias)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        states, _ = super().forward(x)
        if not self.every_step:
            states = states[:, -1] if self.batch_first else states[-1]
        return states if self.out is None else self.out(states)


class StartedLoop(nn.Module):
    """A hand-written recurrence over (T, B, I) from a learnt state; two biases are added first."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        shapes = {"w_in": (hidden, inputs), "w_rec": (hidden, hidden), "w_out": (1, hidden)}
        for name, shape in {
            **shapes,
            "start": (hidden,),
            "b_in": (hidden,),
            "b_rec": (hidden,),
        }.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x: Tensor) -> Tensor:
        h, bias = self.start.expand(x.shape[1], -1), self.b_in + self.b_rec
        for x_t in x:
            h = torch.relu(F.linear(x_t, self.w_in, bias) + h @ self.w_rec.T)
        return h @ self.w_out.T


class HandLoop(nn.Module):
    """A hand-written recurrence over (T, B, I), state from torch.zeros."""

    def __init__(self, inputs: int, hidden: int, outputs: int, every_step: bool = False) -> None:
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(hidden, inputs))
        self.w_rec = nn.Parameter(torch.randn(hidden, hidden))
        self.w_out = nn.Parameter(torch.randn(outputs, hidden))
        self.every_step = every_step

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], self.w_rec.shape[0], dtype=x.dtype)
        outputs = []
        for x_t in x:
            h = torch.relu(x_t @ self.w_in.t() + h @ self.w_rec.t())
            outputs.append(h @ self.w_out.t())
        return torch.stack(outputs) if self.every_step else outputs[-1]


class CellLoop(nn.Module):
    """torch.nn.RNNCell over (B, T, I)."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.cell = nn.RNNCell(inputs, hidden, nonlinearity="relu")
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(h)


class Residual(nn.Module):
    """stem, blocks h <- [h + W2 [W1 h]_+]_+, head; `+=` and in-place units as in the wild."""

    def __init__(self, inputs: int, width: int, inner: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.stem, self.head, self.blocks = (
            nn.Linear(inputs, width),
            nn.Linear(width, outputs),
            blocks,
        )
        for k in range(blocks):
            block = nn.Module()
            block.first, block.second = nn.Linear(width, inner), nn.Linear(inner, width)
            setattr(self, f"block{k}", block)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x), inplace=True)
        for k in range(self.blocks):
            block = getattr(self, f"block{k}")
            identity = h
            inside = block.second(F.relu(block.first(h)))
            inside += identity
            h = F.relu_(inside)
        return self.head(h)


class ConvNet(nn.Module):
    def __init__(self, padding: int = 1, stride: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, stride=stride, padding=padding)
        self.linear = nn.Linear(2 * 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu().flatten(1))


class Chain(nn.Module):
    """One weight used again and again on one path: o_0 s o_1 s ... s o_k."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.randn(()))
        self.others = nn.Parameter(torch.randn(uses + 1))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.others[0]
        for other in self.others[1:]:
            h = torch.relu(torch.relu(h) * self.shared) * other
        return h


class TiedAutoencoder(nn.Module):
    """Decoder is the encoder transposed."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, inputs))
        self.bias = nn.Parameter(torch.randn(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, self.weight, self.bias)), self.weight.t())


class TiedLanguageModel(nn.Module):
    """Embedding, ReLU RNN, output tied to the embedding: predictions at every step; (B, T) in."""

    def __init__(self, vocabulary: int, width: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding_idx)
        self.rnn = nn.RNN(width, width, nonlinearity="relu", batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.rnn(self.embedding(words))
        return self.decoder(states)


class OnesLanguageModel(TiedLanguageModel):
    """The same network on ones over its vocabulary, (B, T, V): a lookup as a product."""

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x @ self.embedding.weight)
        return self.decoder(states)


class CalledTwice(nn.Module):
    """One Linear in two places of one path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.layer(x).relu()).relu())


class Packed(nn.Module):
    """Padded sequences (B, T, I) and lengths: packed for the RNN, unpacked for the output."""

    def __init__(self, inputs: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden, nonlinearity="relu", batch_first=True, **options)
        self.out = nn.Linear(hidden * (1 + self.rnn.bidirectional), 1, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(states)


class LearntStart(nn.Module):
    """An RNN whose initial state is a parameter."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden, nonlinearity="relu")
        self.start = nn.Parameter(torch.randn(1, 1, hidden))
        self.out = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, last = self.rnn(x, self.start.expand(1, x.shape[1], -1).contiguous())
        return self.out(last[0])

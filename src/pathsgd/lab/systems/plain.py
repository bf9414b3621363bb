"""The plain recurrent net and its settings, shared by every system that differs in initial values only.

    h_t = f(W_in x_t + b + W_rec h_{t-1}),  h_0 = 0        f = max(0, .) or tanh
    y_t = W_out h_t + b_out

    W_in (H, I)   W_rec (H, H)   b = bias_ih + bias_hh (H,)   W_out (O, H)

Symbols enter as one-hot vectors, as in the paper: x_t in {0, 1}^V and W_in has a column per symbol.  Two ways to
compute the same net, whichever is cheaper:

- V <= H: rows of the identity matrix are looked up (an embedding with a constant table) and multiplied by W_in.  At
  V = 50, H = 512 this adds a tenth to the recurrence, and its weight gradient is one dense product.
- V > H: the rows of W_in^T are looked up (``nn.Embedding``, H numbers per symbol) and pass through an input matrix
  fixed at the identity.  At V = 10,000, H = 200 the dense product would cost as much as the output layer.

Both are made of ``embedding``, ``rnn_relu`` and ``linear``, which path normalisation can read; a path from the input
runs over every symbol, that is, over the sum of all squared rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pathsgd.lab.systems.base import SequenceNet, System
from pathsgd.lab.tasks.base import State, Task

try:
    from pathsgd.nn import RNN
except ImportError:
    from torch.nn import RNN

Nonlinearity = Literal["relu", "tanh"]
Recurrent = Literal["paper", "identity", "uniform", "orthogonal", "normalised-positive"]


class RecurrentNet(SequenceNet):
    """A one-layer recurrent net with a linear readout."""

    one_hot: Tensor | None
    rnn: Any  # torch types the weights of its recurrent layers as Tensor or Module

    def __init__(self, task: Task, hidden: int, nonlinearity: Nonlinearity) -> None:
        super().__init__(task, hidden)
        by_table = task.tokens and task.input_size > hidden
        inputs = hidden if by_table else task.input_size
        self.table = nn.Embedding(task.input_size, hidden) if by_table else None
        one_hot = torch.eye(task.input_size) if task.tokens and not by_table else None
        self.register_buffer("one_hot", one_hot, persistent=False)
        # The drop-in is faster and only for ReLU; torch's own does tanh.
        layer = RNN if nonlinearity == "relu" else nn.RNN
        self.rnn = layer(inputs, hidden, nonlinearity=nonlinearity)
        if by_table:
            self.rnn.weight_ih_l0.requires_grad_(False).copy_(torch.eye(hidden))

    @property
    def input_matrix(self) -> nn.Parameter:
        """The learned input weights: W_in (H, I), or its transpose where symbols are looked up."""
        return self.rnn.weight_ih_l0 if self.table is None else self.table.weight

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        if self.table is not None:
            inputs = self.table(inputs)
        elif self.one_hot is not None:
            inputs = F.embedding(inputs, self.one_hot)
        hidden, last = self.rnn(inputs, None if state is None else state[0].unsqueeze(0))
        last = last[0]
        # The last state by itself, not hidden[-1]: its backward need not fill a (T, B, H) gradient with zeros.
        return (hidden if all_steps else last), (last,)


@dataclass(frozen=True)
class PlainSystem(System):
    """Settings of a plain recurrent net; the defaults are the paper's initial values for the task at hand."""

    recurrent: Recurrent = "paper"
    """Initial recurrent matrix."""
    gain: float = 1.0
    """Factor on the initial recurrent matrix."""
    recurrent_range: float | None = None
    """Half-width of a uniform recurrent matrix; None: the paper's for the task."""
    others_range: float | None = None
    """Half-width of the uniform initial input and output weights; None: the paper's for the task."""
    mean_bias: bool = False
    """Start the output bias at the mean of the targets (1 in the adding problem) instead of 0."""

    def _make(self, task: Task, nonlinearity: Nonlinearity) -> RecurrentNet:
        """The net with these settings."""
        net = RecurrentNet(task, self.hidden or task.paper.hidden, nonlinearity)
        kind = task.paper.recurrent if self.recurrent == "paper" else self.recurrent
        half_width = task.paper.recurrent_range if self.recurrent_range is None else self.recurrent_range
        others = task.paper.others_range if self.others_range is None else self.others_range
        with torch.no_grad():
            net.rnn.weight_hh_l0.copy_(self.gain * recurrent_matrix(kind, net.rnn.hidden_size, half_width))
            net.input_matrix.uniform_(-others, others)
            net.readout.weight.uniform_(-others, others)
            net.rnn.bias_ih_l0.zero_()
            net.rnn.bias_hh_l0.zero_()
            net.readout.bias.fill_(task.target_mean if self.mean_bias else 0.0)
        return net


def recurrent_matrix(kind: Recurrent, size: int, half_width: float) -> Tensor:
    """An initial recurrent matrix (H, H)."""
    if kind == "identity":
        return torch.eye(size)
    if kind == "uniform":
        return torch.empty(size, size).uniform_(-half_width, half_width)
    if kind == "orthogonal":
        return nn.init.orthogonal_(torch.empty(size, size))
    if kind == "normalised-positive":
        return normalised_positive(size)
    raise ValueError(f"unknown initial recurrent matrix {kind!r}")


def normalised_positive(size: int) -> Tensor:
    """(A + I) / lambda_max(A + I) with A = R^T R / H and R ~ N(0, 1): symmetric, eigenvalues in (0, 1], the largest 1.

    Talathi and Vartak (2015), in float64 so that the largest eigenvalue is 1 to the last digits of float32.
    """
    r = torch.randn(size, size, dtype=torch.float64)
    shifted = r.t() @ r / size + torch.eye(size, dtype=torch.float64)
    return (shifted / torch.linalg.eigvalsh(shifted)[-1]).float()

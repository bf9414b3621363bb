"""The plain recurrent net, shared by every system that differs in initial values only.

    h_t = f(W_in x_t + b + W_rec h_{t-1}),  h_0 = 0        f = max(0, .) or tanh
    y_t = W_out h_t + b_out

    W_in (H, I)   W_rec (H, H)   b = bias_ih + bias_hh (H,)   W_out (O, H)

Symbols enter as one-hot vectors, as in the paper: x_t in {0, 1}^V and W_in has a column per symbol.
A symbol looks up its row of a table E (V, .), and W_in x_t = M E^T x_t, where one of E and M is
fixed at the identity, the cheaper one:

- V <= H: E = I, M = W_in is learned.  At V = 50, H = 512 the product adds a tenth of the time.
- V > H: M = I, E = W_in^T is learned.  At V = 10,000, H = 200 a (H, V) product costs as much as
  the output layer; the product with M costs as much as one recurrent step's.

Both are the same net, made of ``embedding``, ``rnn_relu`` and ``linear``, which path normalisation
can read.  The all-ones input over a vocabulary is the sum of all squared rows of E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from pathsgd.nn import RNN, init
from pathsgd_lab.systems.base import SequenceNet, System, symbol_table
from pathsgd_lab.tasks.base import State, Task

Nonlinearity = Literal["relu", "tanh"]
Recurrent = Literal["paper", "identity", "uniform", "orthogonal", "normalised-positive"]


class RecurrentNet(SequenceNet):
    """A one-layer recurrent net with a linear readout."""

    rnn: Any  # torch types the weights of its recurrent layers as Tensor or Module

    def __init__(self, task: Task, hidden: int, nonlinearity: Nonlinearity) -> None:
        super().__init__(task, hidden)
        learned_table = task.tokens and task.input_size > hidden
        self.table = symbol_table(task, hidden, learned_table)
        # The drop-in is faster and only for ReLU; torch's own does tanh.
        layer = RNN if nonlinearity == "relu" else nn.RNN
        self.rnn = layer(
            hidden if learned_table else task.input_size, hidden, nonlinearity=nonlinearity
        )
        if learned_table:
            self.rnn.weight_ih_l0.requires_grad_(False).copy_(torch.eye(hidden))

    @property
    def input_matrix(self) -> Tensor:
        """The learned input weights: W_in (H, I), or its transpose where the table is learned."""
        if self.table is not None and self.table.weight.requires_grad:
            return self.table.weight
        return self.rnn.weight_ih_l0

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        if self.table is not None:
            inputs = self.table(inputs)
        hidden, last = self.rnn(inputs, None if state is None else state[0].unsqueeze(0))
        last = last[0]
        # The last state by itself, not hidden[-1]: its backward need not fill a (T, B, H) gradient
        # with zeros.
        return (hidden if all_steps else last), (last,)


@dataclass(frozen=True)
class PlainSystem(System):
    """Settings of a plain recurrent net, by default the paper's for the task."""

    nonlinearity: ClassVar[Nonlinearity] = "relu"

    recurrent: Recurrent = "paper"
    """Initial recurrent matrix."""
    gain: float = 1.0
    """Factor on the initial recurrent matrix."""
    recurrent_range: float | None = None
    """Half-width of a uniform recurrent matrix; None: the paper's for the task."""
    others_range: float | None = None
    """Half-width of the uniform initial input and output weights; None: the paper's for the
    task."""

    def _build(self, task: Task) -> RecurrentNet:
        net = RecurrentNet(task, self.hidden or task.paper.hidden, self.nonlinearity)
        kind = task.paper.recurrent if self.recurrent == "paper" else self.recurrent
        half_width = (
            task.paper.recurrent_range if self.recurrent_range is None else self.recurrent_range
        )
        others = task.paper.others_range if self.others_range is None else self.others_range
        set_recurrent(net.rnn.weight_hh_l0, kind, half_width)
        with torch.no_grad():
            net.rnn.weight_hh_l0.mul_(self.gain)
            net.input_matrix.uniform_(-others, others)
            net.readout.weight.uniform_(-others, others)
            net.rnn.bias_ih_l0.zero_()
            net.rnn.bias_hh_l0.zero_()
            net.readout.bias.zero_()
        return net


def set_recurrent(weight: Tensor, kind: Recurrent, half_width: float) -> None:
    """Give a recurrent matrix (H, H) its initial values."""
    if kind == "identity":
        init.identity_(weight)
    elif kind == "uniform":
        nn.init.uniform_(weight, -half_width, half_width)
    elif kind == "orthogonal":
        init.orthogonal_(weight)
    elif kind == "normalised-positive":
        init.normalized_positive_(weight)
    else:
        raise ValueError(f"unknown initial recurrent matrix {kind!r}")


@dataclass(frozen=True)
class RnnPathSystem(PlainSystem):
    """Plain ReLU net, path-normalised steps.

    Follows section 5 of the paper: identity recurrent matrix and U[-0.01, 0.01] elsewhere on the
    synthetic tasks and MNIST, uniform matrices on text.  Deviates: the default optimiser is
    Path-Adam everywhere (the paper uses Path-SGD on the synthetic tasks and MNIST; say ``path-sgd``
    for that), and there are biases, starting at zero.
    """

    name: ClassVar[str] = "rnn_path"
    title: ClassVar[str] = "RNN-Path"
    optimiser: ClassVar[str] = "path-adam"
    path_rules: ClassVar[bool] = True


@dataclass(frozen=True)
class RnnReluSystem(PlainSystem):
    """Plain ReLU net, ordinary steps: the same net and initial values as RNN-Path.

    Follows Neyshabur et al. (2016), section 5.3: 2048 units, recurrent U[-0.01, 0.01], others
    U[-0.2, 0.2], Adam.
    Deviates: biases, starting at zero, which the paper does not mention.
    """

    name: ClassVar[str] = "rnn_relu"
    title: ClassVar[str] = "RNN-ReLU"
    path_rules: ClassVar[bool] = True


@dataclass(frozen=True)
class RnnTanhSystem(PlainSystem):
    """Plain tanh net.

    Follows Neyshabur et al. (2016), section 5.3: 2048 units, Adam.  The paper gives initial values
    for its ReLU nets only; here the tanh net has the same.
    """

    name: ClassVar[str] = "rnn_tanh"
    title: ClassVar[str] = "RNN-tanh"
    nonlinearity: ClassVar[Nonlinearity] = "tanh"


@dataclass(frozen=True)
class IrnnSystem(PlainSystem):
    """Plain ReLU net with W_rec = I, b = 0 and SGD.

    Follows Le et al. (2015) for the recurrent matrix and biases, and Neyshabur et al. (2016) for
    the other weights: U[-0.01, 0.01] on every task (Le et al. draw them from a Gaussian with
    standard deviation 0.001).
    """

    name: ClassVar[str] = "irnn"
    title: ClassVar[str] = "IRNN"
    optimiser: ClassVar[str] = "sgd"
    path_rules: ClassVar[bool] = True

    recurrent: Recurrent = "identity"
    """Initial recurrent matrix."""
    others_range: float | None = 0.01
    """Half-width of the uniform initial input and output weights; None: the paper's for the
    task."""


@dataclass(frozen=True)
class NpRnnSystem(PlainSystem):
    """Plain ReLU net with W_rec = (A + I) / lambda_max(A + I), A = R^T R / H, R ~ N(0, 1).

    Largest eigenvalue 1, all others in (0, 1): one direction is kept, the rest decays.
    Follows Talathi and Vartak (2015) also in the input weights, alpha N(0, 1) / H, that is of
    standard deviation alpha / H and not alpha / sqrt(H), with alpha = sqrt(2) exp(1.2 / (max(H, 6)
    - 2.4)) (the factor of Sussillo and
    Abbott, 2014).  Deviates: output weights from N(0, 2 / (H + O)) (Glorot and Bengio, 2010), where
    public re-implementations differ among each other.  ``others_range`` replaces both by a uniform
    draw.
    """

    name: ClassVar[str] = "np_rnn"
    title: ClassVar[str] = "np-RNN"
    optimiser: ClassVar[str] = "rmsprop"
    path_rules: ClassVar[bool] = True

    recurrent: Recurrent = "normalised-positive"
    """Initial recurrent matrix."""
    others_range: float | None = None
    """Half-width of uniform initial input and output weights, instead of Talathi and Vartak's."""

    def _build(self, task: Task) -> RecurrentNet:
        net = super()._build(task)
        if self.others_range is None:
            hidden = net.rnn.hidden_size
            alpha = math.sqrt(2.0) * math.exp(1.2 / (max(hidden, 6) - 2.4))
            with torch.no_grad():
                net.input_matrix.normal_(0.0, alpha / hidden)
                net.readout.weight.normal_(0.0, math.sqrt(2.0 / (hidden + task.output_size)))
        return net


@dataclass(frozen=True)
class OrthogonalRnnSystem(PlainSystem):
    """Plain ReLU net with an orthogonal recurrent matrix, the exponential of a skew-symmetric one.

    Every singular value is one, at every step of training. The start is the plain net's, made
    orthogonal.
    """

    name: ClassVar[str] = "orthogonal_rnn"
    title: ClassVar[str] = "RNN, orthogonal"

    def _build(self, task: Task) -> RecurrentNet:
        net = super()._build(task)
        orthogonal(net.rnn, "weight_hh_l0")
        return net

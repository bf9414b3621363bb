"""What LSTM and GRU share: torch's own gated layers, one block of H rows per gate.

Symbols enter as one-hot vectors; above 256 of them, through a learned embedding of H numbers, since
a gated layer has several input matrices and a product with each would be most of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System, symbol_table
from pathsgd_lab.tasks.base import State, Task

ONE_HOT_SYMBOLS = 256


class GatedNet(SequenceNet):
    """One LSTM or GRU layer with a linear readout."""

    rnn: Any  # torch types the weights of its recurrent layers as Tensor or Module

    def __init__(self, task: Task, hidden: int, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__(task, hidden)
        embedded = task.tokens and task.input_size > ONE_HOT_SYMBOLS
        self.table = symbol_table(task, hidden, embedded)
        self.rnn = layer(hidden if embedded else task.input_size, hidden)

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        if self.table is not None:
            inputs = self.table(inputs)
        if isinstance(self.rnn, nn.LSTM):
            given = None if state is None else (state[0].unsqueeze(0), state[1].unsqueeze(0))
            hidden, (last, cell) = self.rnn(inputs, given)
            new_state: State = (last[0], cell[0])
        else:
            hidden, last = self.rnn(inputs, None if state is None else state[0].unsqueeze(0))
            new_state = (last[0],)
        return (hidden if all_steps else last[0]), new_state


@dataclass(frozen=True)
class GatedSystem(System):
    """Settings of a gated net."""

    layer: ClassVar[type[nn.LSTM] | type[nn.GRU]]

    others_range: float = 0.01
    """Half-width of the uniform initial non-recurrent weights."""

    def _build(self, task: Task) -> GatedNet:
        """The net with orthogonal recurrent matrices, zero biases and the rest uniform."""
        net = GatedNet(task, self.hidden or task.paper.gated_hidden, self.layer)
        with torch.no_grad():
            for block in net.rnn.weight_hh_l0.split(net.rnn.hidden_size):
                nn.init.orthogonal_(block)
            net.rnn.weight_ih_l0.uniform_(-self.others_range, self.others_range)
            net.readout.weight.uniform_(-self.others_range, self.others_range)
            if net.table is not None and net.table.weight.requires_grad:
                # Two small layers in a row would make nearly no input: the table keeps the scale of
                # a one-hot vector.
                net.table.weight.normal_()
            for bias in (net.rnn.bias_ih_l0, net.rnn.bias_hh_l0, net.readout.bias):
                bias.zero_()
        return net


@dataclass(frozen=True)
class LstmSystem(GatedSystem):
    """One LSTM layer.

    Follows Neyshabur et al. (2016), section 5.3: orthogonal recurrent matrices (one per gate; Saxe
    et al., 2013), U[-0.01, 0.01] elsewhere, 1024 units on text, Adam.  Deviates: the forget gate's
    bias starts at 1 (Jozefowicz et al., 2015), the paper names no value; no peepholes.
    """

    name: ClassVar[str] = "lstm"
    title: ClassVar[str] = "LSTM"
    layer = nn.LSTM

    forget_bias: float = 1.0
    """Initial bias of the forget gate."""

    def _build(self, task: Task) -> GatedNet:
        net = super()._build(task)
        with torch.no_grad():
            # torch's order of gates: input, forget, cell, output.
            net.rnn.bias_ih_l0.view(4, -1)[1] = self.forget_bias
        return net


@dataclass(frozen=True)
class GruSystem(GatedSystem):
    """One GRU layer.

    Follows Cho et al. (2014) for the cell, with the LSTM's initial values of Neyshabur et al.
    (2016).  Deviates: torch's cell applies the reset gate after the recurrent product, n_t = tanh(W
    x_t + r_t * (U h_{t-1})).
    """

    name: ClassVar[str] = "gru"
    title: ClassVar[str] = "GRU"
    layer = nn.GRU

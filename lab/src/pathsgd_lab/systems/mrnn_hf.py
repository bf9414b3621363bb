"""HF-MRNN: a multiplicative net, Hessian-free (Sutskever, Martens and Hinton, 2011).

    f_t = (W_fx x_t) * (W_fh h_{t-1})           F factors, elementwise product
    h_t = tanh(W_hf f_t + W_hx x_t + b)
    y_t = W_out h_t + b_out

The input chooses the recurrent matrix: W_hf diag(W_fx x_t) W_fh.  The optimiser is in
``hessian_free``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System, gather_steps, input_weights
from pathsgd_lab.tasks.base import State, Task

CONNECTIONS = 15


class MultiplicativeNet(SequenceNet):
    """The multiplicative recurrence, unrolled step by step."""

    def __init__(self, task: Task, hidden: int, factors: int) -> None:
        super().__init__(task, hidden)
        self.input = input_weights(task, hidden)
        self.input_factors = input_weights(task, factors)
        self.hidden_factors = nn.Parameter(sparse_weights(factors, hidden))
        self.recurrent = nn.Parameter(sparse_weights(hidden, factors))
        self.bias = nn.Parameter(torch.zeros(hidden))
        with torch.no_grad():
            # One step's W_fx x_t has entries of about 1: the recurrent matrix is then of about unit
            # size.
            scale = 1.0 if task.tokens else 1.0 / math.sqrt(task.input_size)
            next(self.input_factors.parameters()).normal_(0.0, scale)
            next(self.input.parameters()).normal_(0.0, 0.1 * scale)
            self.readout.weight.copy_(sparse_weights(task.output_size, hidden))
            self.readout.bias.zero_()

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        driven = self.input(inputs) + self.bias
        factors = self.input_factors(inputs)
        h = torch.zeros_like(driven[0]) if state is None else state[0]
        steps = []
        for drive, factor in zip(driven.unbind(0), factors.unbind(0), strict=True):
            h = torch.tanh(
                torch.addmm(drive, factor * (h @ self.hidden_factors.t()), self.recurrent.t())
            )
            steps.append(h)
        return gather_steps(steps, all_steps), (h,)


def sparse_weights(rows: int, columns: int) -> Tensor:
    """At most 15 weights per unit, from N(0, 1 / 15): the sparse start of Martens (2010)."""
    count = min(CONNECTIONS, columns)
    chosen = torch.rand(rows, columns).topk(count, dim=1).indices
    return torch.zeros(rows, columns).scatter_(
        1, chosen, torch.randn(rows, count) / math.sqrt(count)
    )


@dataclass(frozen=True)
class MrnnHfSystem(System):
    """Multiplicative tanh net, Hessian-free steps.

    Follows Sutskever et al. (2011) for the net and Martens and Sutskever (2011) for the training
    (``hessian_free``).
    Deviates: scales of the initial values are ours; the number of units is the paper's for the task
    (Sutskever et al. have 1500 units and as many factors).
    """

    name: ClassVar[str] = "mrnn_hf"
    title: ClassVar[str] = "HF-MRNN"
    optimiser: ClassVar[str] = "hessian-free"

    factors: int | None = None
    """Multiplicative factors F; None: as many as units."""

    def _build(self, task: Task) -> MultiplicativeNet:
        hidden = self.hidden or task.paper.hidden
        return MultiplicativeNet(task, hidden, self.factors or hidden)

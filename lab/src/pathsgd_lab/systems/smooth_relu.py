"""RNN with a smooth ReLU (Pachitariu and Sahani, 2013).

    h_t = f(W_in x_t + b + W_rec h_{t-1}),   f(x) = (x + sqrt(x^2 + eps)) / 2

f is positive, increasing and differentiable everywhere, within sqrt(eps) / 2 of max(0, x), and
equal to it for eps = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System, gather_steps, input_weights
from pathsgd_lab.tasks.base import State, Task


class SmoothReluNet(SequenceNet):
    """A plain recurrent net with the smooth rectifier, unrolled step by step."""

    def __init__(self, task: Task, hidden: int, eps: float) -> None:
        super().__init__(task, hidden)
        self.eps = eps
        self.input = input_weights(task, hidden)
        self.recurrent = nn.Parameter(torch.eye(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        driven = self.input(inputs) + self.bias
        h = torch.zeros_like(driven[0]) if state is None else state[0]
        transposed = self.recurrent.t()
        steps = []
        for drive in driven.unbind(0):
            h = smooth_relu(torch.addmm(drive, h, transposed), self.eps)
            steps.append(h)
        return gather_steps(steps, all_steps), (h,)


def smooth_relu(x: Tensor, eps: float) -> Tensor:
    """(x + sqrt(x^2 + eps)) / 2."""
    return 0.5 * (x + torch.sqrt(x * x + eps))


@dataclass(frozen=True)
class SmoothReluSystem(System):
    """Plain net with the smooth rectifier (x + sqrt(x^2 + eps)) / 2.

    Follows Pachitariu and Sahani (2013), as Neyshabur et al. (2016) quote them, in the idea alone:
    a plain net with a rectifier that has no corner.  The form of the unit and eps are our choice;
    eps = 1e-4 bends the rectifier within about 0.01 of zero, f(0) = 0.005.  Deviates further:
    initial values as for RNN-ReLU, Adam instead of SGD with momentum, no dropout.
    """

    name: ClassVar[str] = "smooth_relu"
    title: ClassVar[str] = "RNN + smooth ReLU"

    eps: float = 1e-4
    """Width of the bend, squared."""
    others_range: float | None = None
    """Half-width of the uniform initial input and output weights; None: the paper's for the
    task."""

    def _build(self, task: Task) -> SmoothReluNet:
        net = SmoothReluNet(task, self.hidden or task.paper.hidden, self.eps)
        others = task.paper.others_range if self.others_range is None else self.others_range
        with torch.no_grad():
            if task.paper.recurrent == "uniform":
                net.recurrent.uniform_(-task.paper.recurrent_range, task.paper.recurrent_range)
            for weight in (*net.input.parameters(), net.readout.weight):
                weight.uniform_(-others, others)
            net.readout.bias.zero_()
        return net

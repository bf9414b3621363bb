"""CTRNN: a ReLU rate network in continuous time, as computational neuroscience trains them.

h_t = (1 - a) h_{t-1} + a max(0, W_in x_t + W_rec h_{t-1} + b),  h_0 = 0        a = dt / tau
y_t = W_out h_t + b_out
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.systems.base import SequenceNet, System, gather_steps, input_weights
from pathsgd_lab.tasks.base import State, Task


class LeakyNet(SequenceNet):
    """A leaky recurrence, one step of time after the other."""

    def __init__(self, task: Task, hidden: int, leak: float) -> None:
        super().__init__(task, hidden)
        self.leak = leak
        self.input = input_weights(task, hidden)
        self.recurrent = nn.Linear(hidden, hidden)

    def unroll(self, inputs: Tensor, state: State | None, all_steps: bool) -> tuple[Tensor, State]:
        """See ``SequenceNet``."""
        driven = self.input(inputs)
        h = driven.new_zeros(driven.shape[1:]) if state is None else state[0]
        steps = []
        for x in driven.unbind(0):
            h = (1.0 - self.leak) * h + self.leak * torch.relu(x + self.recurrent(h))
            steps.append(h)
        return gather_steps(steps, all_steps), (h,)


@dataclass(frozen=True)
class CtrnnSystem(System):
    """Leaky ReLU rate network, as trained on tasks of neuroscience.

    Follows Yang et al. (2019) for the equation and for a = 0.2, and starts, as they do for ReLU
    units, from half the identity; deviates: no noise in the units, input and output weights N(0, 1
    / inputs).
    """

    name: ClassVar[str] = "ctrnn"
    title: ClassVar[str] = "CTRNN"
    path_rules: ClassVar[bool] = True

    leak: float = 0.2
    """a = dt / tau: share of the new value in each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.leak <= 1.0:
            raise ValueError(f"leak must be in (0, 1], got {self.leak}")

    def _build(self, task: Task) -> LeakyNet:
        net = LeakyNet(task, self.hidden or task.paper.hidden, self.leak)
        with torch.no_grad():
            net.recurrent.weight.copy_(0.5 * torch.eye(len(net.recurrent.weight)))
            net.recurrent.bias.zero_()
            inputs = net.input.weight
            assert isinstance(inputs, Tensor)
            inputs.normal_(std=1.0 if task.tokens else task.input_size**-0.5)
            net.readout.weight.normal_(std=net.readout.in_features**-0.5)
            net.readout.bias.zero_()
        return net

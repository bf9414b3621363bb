"""G-SGD (Meng et al., 2019): gradient descent on the values of basis paths.

The value of a path, the product of its weights, does not change when units are rescaled.  A net
with m weights and H hidden units is determined by m - H of these values, those of its basis paths:

    skeleton weights   the diagonal of each hidden layer; unit j reads input j mod I, output
                       j mod O reads unit j
    q_j                value of the path through skeleton weights and unit j of every layer
    p_w                value of the path that leaves the skeleton once, by weight w from unit s
                       to unit d: p_w = q_s w S_d / S_s   (from an input or a bias: w S_d)
    S_d                product of the skeleton weights from unit d on to the output

One step with gradients g of the weights, every skeleton weight but the first of its path held where
it is:

    v    the first weight of a skeleton path
    g_p = g_w dw/dp                                                   (the inverse chain rule)
    g_q = (g_v v - sum of g_w w over weights w that leave a unit of the path) / q_j
    p <- p - lr g_p;  q <- q - lr g_q
    v <- q / S, w <- p S_s / (q_s S_d)                                (weights of these values)

Written from the paper's description; the paper has no biases and uses convolutional nets too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.optimisers.base import GradientOptimiser, GradientStepper
from pathsgd_lab.systems import SequenceNet, System
from pathsgd_lab.systems.feed_forward import FeedForwardNet
from pathsgd_lab.tasks import Task


class GSGD(torch.optim.Optimizer):
    """Gradient descent on the values of basis paths.

    layers: the linear layers of a dense ReLU net in order, all hidden ones of one width.
    lr: learning rate of the paths' values.
    clip: bound on the norm of the gradient by the paths' values; 0: none.
    """

    def __init__(self, layers: list[nn.Linear], lr: float, clip: float = 0.0) -> None:
        widths = {layer.out_features for layer in layers[:-1]}
        if len(widths) != 1:
            raise ValueError(
                f"G-SGD is defined for hidden layers of one width, got {sorted(widths)}"
            )
        self.layers, self.width = layers, widths.pop()
        super().__init__(
            [p for layer in layers for p in layer.parameters()], {"lr": lr, "clip": clip}
        )

    def _skeleton(self, layer: nn.Linear) -> tuple[Tensor, Tensor]:
        """Rows and columns of the skeleton weights, by unit."""
        unit = torch.arange(self.width)
        return unit % layer.out_features, unit % layer.in_features

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step along the gradient by the paths' values."""
        if closure is not None:
            raise ValueError("G-SGD takes no closure: call backward before step")
        diagonals = [layer.weight[self._skeleton(layer)] for layer in self.layers]
        # onward[l]: S of the units of layer l, the product of the skeleton weights behind them; 1
        # for outputs.
        onward = [torch.ones(self.width)]
        for diagonal in reversed(diagonals[1:]):
            onward.insert(0, onward[0] * diagonal)
        q = diagonals[0] * onward[0]
        values, gradients = self._paths(onward, q)
        g_q = self._skeleton_gradient(diagonals[0], q)
        group = self.param_groups[0]
        rate = group["lr"] * self._shrink([g_q, *gradients], group["clip"])
        self._allocate(onward, q - rate * g_q, [v - rate * g for v, g in zip(values, gradients)])

    def _units(self, onward: list[Tensor], index: int) -> Tensor:
        """S of what a layer leads to: its hidden units, or outputs."""
        layer = self.layers[index]
        return onward[index] if index + 1 < len(self.layers) else torch.ones(layer.out_features)

    def _factor(self, onward: list[Tensor], q: Tensor, index: int) -> Tensor:
        """p / w for the weights of a layer; a column of ones stands for inputs."""
        out = self._units(onward, index).unsqueeze(1)
        return out * (q / onward[index - 1]) if index else out.expand_as(self.layers[0].weight)

    def _paths(self, onward: list[Tensor], q: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Values of paths that leave the skeleton once, and gradients; 0 at skeleton weights."""
        values, gradients = [], []
        for index, layer in enumerate(self.layers):
            factor = self._factor(onward, q, index)
            skeleton = self._skeleton(layer)
            for p, f in ((layer.weight, factor), (layer.bias, self._units(onward, index))):
                assert p.grad is not None
                value, gradient = p * f, p.grad / f
                if p is layer.weight:
                    gradient[skeleton] = 0.0
                values.append(value)
                gradients.append(gradient)
        return values, gradients

    def _skeleton_gradient(self, first: Tensor, q: Tensor) -> Tensor:
        """The gradient by the values of the skeleton's paths."""
        head = self.layers[0]
        assert head.weight.grad is not None
        total = first * head.weight.grad[self._skeleton(head)]
        for _, layer in pairwise(self.layers):
            assert layer.weight.grad is not None
            product = layer.weight * layer.weight.grad
            product[self._skeleton(layer)] = 0.0
            total = total - product.sum(0)
        return total / q

    @staticmethod
    def _shrink(gradients: list[Tensor], clip: float) -> float:
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        return min(1.0, clip / norm) if clip > 0.0 and norm > 0.0 else 1.0

    def _allocate(self, onward: list[Tensor], q: Tensor, values: list[Tensor]) -> None:
        """Weights that give the paths these values; the skeleton behind the first layer is kept."""
        for index, layer in enumerate(self.layers):
            skeleton = self._skeleton(layer)
            kept = layer.weight[skeleton]
            layer.weight.copy_(values[2 * index] / self._factor(onward, q, index))
            layer.weight[skeleton] = q / onward[0] if index == 0 else kept
            layer.bias.copy_(values[2 * index + 1] / self._units(onward, index))


@dataclass(frozen=True)
class GSgdOptimiser(GradientOptimiser):
    """Gradient descent on the values of basis paths, for ``mlp`` only (Meng et al., 2019)."""

    name: ClassVar[str] = "g-sgd"
    title: ClassVar[str] = "G-SGD"
    only_for: ClassVar[str | None] = "mlp"

    lr: float = 1e-2
    """Learning rate at full height; the schedule and the curriculum multiply it."""
    clip: float = 1.0
    """Bound on the norm of the gradient by the paths' values; 0: none."""

    def stepper(self, system: System, model: SequenceNet, task: Task) -> GradientStepper:
        """Step without a clip of the Euclidean norm, which rescaling would change."""
        return GradientStepper(system, model, task, self.make(model, task), clip=0.0)

    def make(self, model: SequenceNet, task: Task) -> GSGD:
        """G-SGD on the net's layers."""
        assert isinstance(model, FeedForwardNet)
        hidden = [m for m in model.body.modules() if isinstance(m, nn.Linear)]
        return GSGD([*hidden, model.readout], self.lr, self.clip)


OPTIMISERS[GSgdOptimiser.name] = GSgdOptimiser

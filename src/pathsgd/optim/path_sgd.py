"""Path-SGD, with momentum in whitened coordinates.

u = grad / sqrt(K),  m <- momentum * m + u,  p <- p - lr * m / sqrt(K)        (K: metric/choice.py)
p <- p - lr * grad / kappa                                                    metric="paper"
p <- p - lr * c * grad / kappa,  c = |grad| / |grad / kappa| at first         and scale="sgd"
"""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor, nn

from pathsgd.metric.bounds import Scale, sgd_constant
from pathsgd.metric.choice import MetricChoice, check_scale, chosen
from pathsgd.optim.base import Options, PathOptimizer
from pathsgd.optim.plan import Part, adder
from pathsgd.optim.rules.momentum import Momentum
from pathsgd.optim.step import directions


class PathSGD(PathOptimizer):
    """Stochastic gradient descent in a model's path geometry; invariant under node-wise rescaling.

    model: the network itself; the metric needs its structure.
    lr: step size eta.
    momentum: as in torch.optim.SGD, on whitened gradients.
    nesterov: Nesterov's momentum.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p; L2 in the gradient is not invariant.
    metric: "absolute", "relative" or a `pathsgd.Metric`; "paper" implements the published update,
        p <- p - lr * grad / kappa, exactly.
    scale: under the paper's metric, "kappa" is the rule as printed; "sgd" multiplies it by one
        constant, measured at the first step and kept in the state dict, that makes this step as
        long as SGD's, so that SGD's rates fit.
    maximize: step up the gradient.
    terms: "first" (the default) uses kappa1, "both" kappa1 + kappa2.
    clip: a number bounds the dual norm; under the paper's metric it bounds the length of the scaled
        direction instead, as `clip_grad_norm_` on path-normalised gradients would, which rescaling
        changes. `DualNorm(limit)` bounds the dual norm under every metric. None: no bound. "auto"
        (the default): 1, none under the paper's metric.
    growth: bound on uses * log(growth rate) of every recurrent matrix, enforced after each step
        (optim/growth.py); steps stay within the room below it (optim/step_bound.py). None: no
        bound. "auto" (the default): 3, none under the paper's metric.
    refresh_every: steps between two measurements of the metric; 1.
    capturable: a step on a GPU between two measurements can be captured in a graph (docs/scale.md).
    params: parameters, named parameters or groups of them; None: all of the model's.
    example_inputs: inputs of the shapes to measure for; None: those of the last forward pass.
    output: the model's result to measure: an index, a key or a function; None: the first tensor.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathSGD(model, lr=0.1)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    kept: ClassVar[tuple[str, ...]] = (*PathOptimizer.kept, "scale")

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor = 1e-2,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        metric: MetricChoice = "absolute",
        *,
        scale: Scale = "kappa",
        maximize: bool = False,
        **options: Unpack[Options],
    ) -> None:
        check_scale(scale, chosen(metric))
        self.scale = scale
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "constant": None,
        }
        super().__init__(model, Momentum(), defaults, metric, **options)

    def _constant(self, parts: list[Part]) -> float:
        if self.scale == "kappa":
            return 1.0
        known = self.param_groups[0].get("constant")
        if known is not None:
            return float(known)
        gradients = [gradient for part in parts for gradient in part.gradients()]
        constant = sgd_constant(gradients, directions(parts), adder(parts))
        if constant is None:  # nothing moves, or nothing is finite: the next step finds it
            return 1.0
        for group in self.param_groups:
            group["constant"] = constant
        return constant

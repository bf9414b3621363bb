"""SOAP in path geometry.

u = grad / sqrt(K)        d = Q_L Adam(Q_L^T u Q_R) Q_R^T        p <- p - lr * d / sqrt(K)

u does not change when units are rescaled, and neither do its statistics and their eigenvectors Q.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor, nn

from pathsgd.metric.choice import MetricChoice, with_coordinates
from pathsgd.optim.base import Options, PathOptimizer
from pathsgd.optim.rules.soap import Soap


class PathSOAP(PathOptimizer):
    """SOAP (Vyas et al. 2024) on whitened gradients; invariant under node-wise rescaling.

    The first step moves nothing: the first gradient makes the bases of the second.

    model: the network itself; the metric needs its structure.
    lr: Adam's alpha; None: 1e-3.
    betas: Adam's beta1 and beta2; beta2 is also the rate of the statistics L and R.
    eps: Adam's epsilon.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    precondition_frequency: steps between two updates of a basis. Those of a model are spread over
        as many steps.
    max_dim: the largest dimension that gets a basis. The other side of such a matrix keeps its own.
    sides: "both" ends of a matrix get a basis, or only the one of the "smaller" dimension.
    flat_convolutions: a kernel is a matrix out x (in * height * width); else input and output
        channels get a basis each.
    metric: "absolute", "relative" or a `pathsgd.Metric`.
    maximize: step up the gradient.
    terms, clip, growth, refresh_every, capturable: as in `PathAdam`.
    params, example_inputs, output: as in `PathAdam`.

    A parameter group may have its own lr, betas, eps, weight_decay, precondition_frequency,
    max_dim, sides, flat_convolutions and maximize. max_dim=0 is Adam.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = PathSOAP(model, lr=1e-3)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor | None = None,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        precondition_frequency: int = 10,
        max_dim: int = 1024,
        sides: Literal["both", "smaller"] = "both",
        metric: MetricChoice = "absolute",
        *,
        flat_convolutions: bool = False,
        maximize: bool = False,
        **options: Unpack[Options],
    ) -> None:
        defaults = {
            "lr": 1e-3 if lr is None else lr,
            "betas": (float(betas[0]), float(betas[1])),
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_frequency": precondition_frequency,
            "max_dim": max_dim,
            "sides": sides,
            "flat_convolutions": flat_convolutions,
            "maximize": maximize,
        }
        rule = Soap(capturable=options.get("capturable", False))
        super().__init__(model, rule, defaults, with_coordinates(metric), **options)

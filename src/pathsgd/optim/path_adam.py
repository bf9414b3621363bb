"""Adam in path geometry.

    u = grad / sqrt(K);  m, v: Adam's moments of u;  p <- p - lr * m^ / (sqrt(v^) + eps) / sqrt(K)
    m, v: Adam's moments of grad / kappa;            p <- p - lr * m^ / (sqrt(v^) + eps)
                                                     metric="paper"

The moments of u do not change when units are rescaled, so neither does the trajectory of the
function. The paper's form is not invariant: Adam divides out the scale of its input, and with it
that of kappa.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor, nn

from pathsgd.metric.choice import MetricChoice, chosen
from pathsgd.optim.base import Options, PathOptimizer
from pathsgd.optim.rules.adam import Adam


class PathAdam(PathOptimizer):
    """Adam (Kingma & Ba 2015) on whitened gradients; invariant unless metric="paper".

    model: the network itself; the metric needs its structure.
    lr: Adam's alpha; None: 3e-3 (studies/default-rate), under the paper's metric Adam's 1e-3.
    betas: Adam's beta1 and beta2; None: (0.9, 0.99), under the paper's metric (0.9, 0.999).
    eps: Adam's epsilon; under the paper's metric in units of gamma^2 at the first step.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    metric: "absolute", "relative" or a `pathsgd.Metric`; "paper" is Adam fed with grad / kappa.
    maximize: step up the gradient.
    terms: "first" (the default) uses kappa1, "both" kappa1 + kappa2.
    clip: bound on the dual norm of the gradient, a number or `DualNorm(limit)`; None: no bound.
        "auto" (the default): 1; none under the paper's metric, which takes only a `DualNorm`, in
        units of gamma at the first step.
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
    >>> optimizer = PathAdam(model, lr=1e-3)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    # kappa itself may overflow any dtype. In units of gamma^2 at the first step it does not, and
    # Adam divides out this constant.
    counts_from_start: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor | None = None,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        metric: MetricChoice = "absolute",
        *,
        maximize: bool = False,
        **options: Unpack[Options],
    ) -> None:
        metric, clip = chosen(metric), options.get("clip")
        if metric.numbers_clip_length and isinstance(clip, (int, float)):
            raise ValueError(
                f"clip={clip}: a numeric clip is undefined for metric='paper' of PathAdam; use "
                f"clip=pathsgd.optim.DualNorm({clip}), or leave clip out"
            )
        usual_lr, usual_betas = metric.adam
        beta1, beta2 = usual_betas if betas is None else betas
        defaults = {
            "lr": usual_lr if lr is None else lr,
            "betas": (float(beta1), float(beta2)),
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "log_unit": None,
        }
        super().__init__(model, Adam(), defaults, metric, **options)

"""Muon in path geometry.

u = grad / sqrt(K)        d = NewtonSchulz(momentum of u)        p <- p - lr * d / sqrt(K)

u does not change when units are rescaled, and neither do the singular vectors of its momentum.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor, nn

from pathsgd.metric.choice import MetricChoice, with_coordinates
from pathsgd.optim.base import Options, PathOptimizer
from pathsgd.optim.rules.muon import Muon


class PathMuon(PathOptimizer):
    """Muon (Jordan et al. 2024) on whitened gradients; invariant under node-wise rescaling.

    Vectors, and groups with use_muon=False, move by Adam at the same rate. Muon's authors advise
    this for embedding tables and the output layer.

    model: the network itself; the metric needs its structure.
    lr: the length of a step, in units of adjust_lr_fn; None: 1e-3.
    momentum: of whitened gradients; nesterov: whether the gradient counts once more.
    adjust_lr_fn: "match_rms_adamw", steps as large as Adam's, 0.2 sqrt(max(rows, columns)) long;
        "original", sqrt(max(1, rows / columns)). As in torch.optim.Muon.
    betas, eps: Adam's.
    weight_decay: decoupled, p <- (1 - lr * weight_decay) p.
    use_muon: whether matrices move by Muon; for groups.
    metric: "absolute", "relative" or a `pathsgd.Metric`.
    maximize: step up the gradient.
    terms, clip, growth, refresh_every, capturable: as in `PathAdam`.
    params, example_inputs, output: as in `PathAdam`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> groups = [{"params": model[0].parameters()},
    ...           {"params": model[2].parameters(), "use_muon": False}]
    >>> optimizer = PathMuon(model, lr=1e-3, params=groups)
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Tensor | None = None,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        metric: MetricChoice = "absolute",
        *,
        nesterov: bool = True,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        use_muon: bool = True,
        maximize: bool = False,
        **options: Unpack[Options],
    ) -> None:
        defaults = {
            "lr": 1e-3 if lr is None else lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "adjust_lr_fn": adjust_lr_fn,
            "betas": (float(betas[0]), float(betas[1])),
            "eps": eps,
            "use_muon": use_muon,
            "maximize": maximize,
        }
        super().__init__(model, Muon(), defaults, with_coordinates(metric), **options)

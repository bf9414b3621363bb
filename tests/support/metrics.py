"""The metric written out entry by entry, to judge the whitenings by."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pathsgd.metric.geometry import Measure


def slow_metric(
    measured: Measure, parameters: Mapping[str, Tensor], rho: float
) -> dict[str, Tensor]:
    """K = kappa / gamma^2 / (phi_s phi_d)^(rho/2) per entry; 1 for parameters that never rescale.

    phi is floored at a tenth of its layer's average unit; edges into such a unit in proportion.
    """
    edges = {name: measured.spaces.edges[name] for name in measured.kappa}
    phi = torch.zeros(measured.spaces.count + 1, dtype=torch.float64)
    for name, kappa1 in measured.kappa1.items():
        p = parameters[name].detach().double()
        for node, share in zip(
            edges[name].target.expand(p.shape).flatten().tolist(),
            (p**2 * kappa1).flatten().tolist(),
        ):
            phi[node] += share
    width = torch.ones(len(phi), dtype=torch.float64)
    for e in edges.values():
        layer = set(e.target.flatten().tolist()) - {0}
        for node in layer:
            width[node] = max(float(width[node]), len(layer))
    bounded = torch.maximum(phi, 0.1 / width)
    phi[0] = bounded[0] = 1.0
    raised = torch.where(phi > 0, bounded / phi, 1.0) if rho else torch.ones_like(phi)
    result = {}
    for name, kappa in measured.kappa.items():
        out, into = edges[name].target, edges[name].source
        weighted = kappa * raised[out] / (bounded[out] * bounded[into]) ** (rho / 2)
        free = bool((out != into).any())
        result[name] = (
            (weighted if free else torch.ones(())).expand(parameters[name].shape).double()
        )
    return result

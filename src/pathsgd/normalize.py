"""Path-normalised gradients: pure functions of gradients and a measure, no state.

    paper's direction     grad / kappa
    metric                K = kappa / gamma^2 / (phi_s phi_d)^(rho/2)          for an edge from unit s to unit d
    whitened gradient     u = grad / sqrt(K),    step = -lr * u / sqrt(K)
    dual norm             |u|_2

phi is path flow, the share of all path mass that passes through a unit. rho = 0 is the paper's geometry, rho = 1 the
Euclidean one in balanced coordinates; every rho is invariant under node-wise rescaling, and so are u, its norm and
whatever is computed from them. Parameters that no rescaling changes keep the Euclidean metric, K = 1.

kappa = 0 means that no path with weight uses the entry: it gets no step, and no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.kappa import Terms
from pathsgd.measure import Geometry, Measure
from pathsgd.recording import Output

LEAST_FLOW = 1e-8
"""Flow below this counts as this: a unit whose outgoing weights are all zero could never begin to carry any.

Flow does not change when units are rescaled, so neither does what is computed with the bound.
"""


def path_flow(measured: Measure, parameters: Mapping[str, Tensor]) -> Tensor:
    """phi of every node: the share of path mass that enters it, sum of q * kappa1 / gamma^2 over its incoming edges.

    Node 0 stands for inputs and outputs, phi = 1. Returns (free nodes + 1,).
    """
    phi = torch.zeros(measured.spaces.count + 1, dtype=torch.float64)
    for name, kappa1 in measured.kappa1.items():
        edges = measured.spaces.edges[name]
        if not edges.free:
            continue
        mass = parameters[name].detach().to(torch.float64).square() * kappa1
        # Sum over the dimensions in which the target does not change before scattering: one row per unit.
        dims = [d for d in range(mass.dim()) if edges.out.shape[d] == 1 and mass.shape[d] > 1]
        mass = mass.sum(dims, keepdim=True) if dims else mass
        phi.scatter_add_(0, edges.out.expand(mass.shape).reshape(-1), mass.reshape(-1))
    phi[0] = 1.0
    return phi


def metric(measured: Measure, parameters: Mapping[str, Tensor], rho: float) -> dict[str, Tensor]:
    """K of every parameter, broadcastable to its shape; 1 for parameters that no rescaling changes."""
    has_flow = rho and measured.log_gamma_sq > -math.inf  # without any path mass there are no shares of it
    weight = path_flow(measured, parameters).clamp(min=LEAST_FLOW) ** (rho / 2) if has_flow else None
    result = {}
    for name, kappa in measured.kappa.items():
        edges = measured.spaces.edges[name]
        if not edges.free:
            result[name] = torch.ones([1] * kappa.dim(), dtype=kappa.dtype)
        elif weight is None:
            result[name] = kappa
        else:
            result[name] = kappa / (weight[edges.out] * weight[edges.into])
    return result


def inverse(values: Tensor) -> Tensor:
    """1 / values, and 0 where a value is 0: an entry on no path is not moved."""
    return torch.where(values > 0, 1 / values, torch.zeros_like(values))


def dual_norm(whitened: Iterable[Tensor]) -> Tensor:
    """|u|: the length of the gradient in the dual of the metric, invariant under rescaling."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(u) for u in whitened]))


def clip_factor(norm: float, clip: float | None) -> float:
    """min(1, clip / norm); 0 for a gradient that is not finite, so that one bad batch moves nothing."""
    if not math.isfinite(norm):
        return 0.0
    return 1.0 if clip is None or norm <= clip else clip / norm


def path_normalize_grad_(
    model: nn.Module,
    *inputs: Any,
    terms: Terms = "first",
    rho: float = 0.0,
    relative: bool = False,
    clip: float | None = None,
    output: Output = None,
) -> Tensor:
    """Replace every `.grad` by its path-normalised form, in place; returns the dual norm before clipping.

    By default the paper's direction, grad / kappa. With `relative` or `rho` the metric K of this module takes the
    place of kappa. Use it between `backward()` and the step of any optimiser, as `clip_grad_norm_` is used.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.grad is not None}
    if not parameters:
        return torch.zeros(())
    measured = Geometry(model, output).measure(inputs, terms)
    inverses = inverse_metric(measured, dict(model.named_parameters()), rho, relative=relative or rho != 0)
    with torch.no_grad():
        grads = [p.grad for p in parameters.values() if p.grad is not None]
        scales = [inverses[n].to(p) for n, p in parameters.items()]
        norm = dual_norm([g * s.sqrt() for g, s in zip(grads, scales)])
        factor = clip_factor(float(norm), clip)
        for grad, scale in zip(grads, scales):
            grad.mul_(scale).mul_(factor)
    return norm


def inverse_metric(
    measured: Measure, parameters: Mapping[str, Tensor], rho: float, *, relative: bool
) -> dict[str, Tensor]:
    """1/K of every parameter (float64); `relative=False`: 1/kappa, the paper's. Unused parameters have 0."""
    if relative:
        found = {name: inverse(K) for name, K in metric(measured, parameters, rho).items()}
    else:
        if rho:
            raise ValueError("rho needs the relative metric: path flow is a share of gamma^2")
        scale = math.exp(min(-measured.log_scale, 709.0))  # the largest that float64 holds
        found = {name: inverse(kappa) * scale for name, kappa in measured.kappa.items()}
    zero = torch.zeros((), dtype=torch.float64)
    return {name: found.get(name, zero.expand([1] * p.dim())) for name, p in parameters.items()}


def refuse_sparse(names: Sequence[str], grads: Sequence[Tensor]) -> None:
    for name, grad in zip(names, grads):
        if grad.is_sparse:
            raise RuntimeError(f"the gradient of '{name}' is sparse; use a dense one (Embedding(sparse=False))")

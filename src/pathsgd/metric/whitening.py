"""1/sqrt(K) of every parameter, K the metric of choice (choice.py), from one measurement.

    whitened gradient     u = grad / sqrt(K),    step = -lr * u / sqrt(K)
    dual norm             |u|_2

Under a rescaling p_i -> c_i p_i, kappa_i -> kappa_i / c_i^2 while gamma^2 and path flow stay: so do u, its norm and
whatever is computed from them. Parameters that no rescaling changes keep the Euclidean metric, K = 1, except under the
paper's, which divides every gradient by its kappa.

A parameter that no path to a measured output uses has the Euclidean metric too: only the loss reads it, or what is
not measured. kappa = 0 of an entry on a path means that the path has no weight now: no step, and no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from pathsgd import _native
from pathsgd._native import compute_dtype
from pathsgd.metric.choice import Metric, PaperMetric
from pathsgd.metric.geometry import Measure

LEAST_FLOW = 1e-1
"""Lower bound on path flow, in shares of what a unit of its layer has on average.

Through a unit with tiny outgoing weights next to nothing flows: without a bound its incoming weights would take steps
without limit, and a unit whose outgoing weights are zero could never start learning. Flow does not change when units
are rescaled, so neither does what is computed with the bound.
"""
_LARGEST = 1e150
"""Upper bound on 1/sqrt(K) in float64: its square is finite."""


def path_flow(measured: Measure, parameters: Mapping[str, Tensor]) -> Tensor:
    """phi of every node: the share of path mass that enters it, sum of q * kappa1 / gamma^2 over its incoming edges.

    Node 0 stands for inputs and outputs, phi = 1. Returns (free nodes + 1,).
    """
    device = next(iter(parameters.values())).device
    phi = torch.zeros(measured.spaces.count + 1, dtype=torch.float64, device=device)
    for name, through in measured.flow.items():
        phi[measured.spaces.edges_on(name, device).out.reshape(-1)] = through.to(device)
    for name, kappa1 in measured.kappa1.items() if not measured.flow else ():
        edges = measured.spaces.edges_on(name, device)
        if not measured.is_free(name):
            continue
        mass = parameters[name].detach().to(device, torch.float64).square() * kappa1
        # Sum over the dimensions in which the target does not change before scattering: one row per unit.
        dims = [d for d in range(mass.dim()) if edges.out.shape[d] == 1 and mass.shape[d] > 1]
        mass = mass.sum(dims, keepdim=True) if dims else mass
        phi.scatter_add_(0, edges.out.expand(mass.shape).reshape(-1), mass.reshape(-1))
    phi[:1].fill_(1.0)
    return phi


def _flow_power(measured: Measure, parameters: Mapping[str, Tensor], exponent: float) -> Tensor | None:
    """phi^exponent of every node; None for ones, also where no path mass is there to have shares of."""
    if exponent == 0 or measured.log_gamma_sq == -math.inf:
        return None
    return _bounded(path_flow(measured, parameters), measured) ** exponent


def _bounded(flow: Tensor, measured: Measure) -> Tensor:
    return torch.maximum(flow, measured.spaces.widths_on(flow.device).reciprocal() * LEAST_FLOW)


def _sides(measured: Measure, parameters: Mapping[str, Tensor], rho: float) -> tuple[Tensor, Tensor] | None:
    """What 1/sqrt(kappa) is multiplied by for the unit that an edge enters, and for the unit that it leaves.

        phi^(rho/4) each, phi bounded from below

    Where the bound holds, an edge that enters the unit counts as though as much flowed through it as the bound says:
    its kappa in proportion. So the step of a weight stays a bounded share of it, however little leaves the unit.
    """
    if rho == 0 or measured.log_gamma_sq == -math.inf:
        return None
    flow = path_flow(measured, parameters)
    bounded = _bounded(flow, measured)
    into = bounded ** (rho / 4)
    return torch.where(flow > 0, (flow / bounded).sqrt(), 1.0) * into, into


def whitenings(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    metric: Metric | PaperMetric,
    *,
    log_unit: float = 0.0,
    dtype: torch.dtype | None = None,
    last: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """1/sqrt(K) of every parameter, broadcastable to its shape; of the relative metric where `metric` is absolute.

    Zero where a path has no weight, and never infinite: inf * 0 would be no step. Kept at size 1 where it is constant.

    log_unit: the paper's kappa is counted in exp(log_unit).
    dtype: of the results; None for what each parameter's step is computed in.
    last: an earlier result that nobody needs any more; it is written over where it fits.
    """
    last = last or {}
    is_paper = isinstance(metric, PaperMetric)
    scale = math.exp(min(log_unit - measured.log_scale, 709.0)) if is_paper else 1.0  # e^709: the largest in float64
    weights = None if isinstance(metric, PaperMetric) else _sides(measured, parameters, metric.rho)
    result: dict[str, Tensor] = {}
    made: dict[Any, Tensor] = {}  # several biases may have one and the same kappa
    for name, p in parameters.items():
        kappa, to_dtype = measured.kappa.get(name), dtype or compute_dtype(p.dtype)
        if kappa is None or not (is_paper or measured.is_free(name)):
            result[name] = _constant(1.0, p, to_dtype, last.get(name))
            continue
        sides = None
        if weights is not None:
            edges = measured.spaces.edges_on(name, weights[0].device)
            sides = weights[0][edges.out], weights[1][edges.into]
        key = name if sides else (id(kappa), to_dtype, p.device)
        if key not in made:
            over = last.get(name)
            over = None if over is None or any(over is other for other in made.values()) else over
            made[key] = _inverse_root(kappa, sides, scale, to_dtype, over).to(p.device)
        result[name] = made[key]
    return result


def inverse_metric(
    measured: Measure, parameters: Mapping[str, Tensor], metric: Metric | PaperMetric
) -> dict[str, Tensor]:
    """1/K of every parameter, float64; zero where no path uses it."""
    roots = whitenings(measured, parameters, metric, dtype=torch.float64)
    return {name: root.clamp(max=_LARGEST).square() for name, root in roots.items()}


def _constant(value: float, like: Tensor, dtype: torch.dtype, last: Tensor | None) -> Tensor:
    """`value` in a tensor of size 1 that has as many dimensions as `like`; the last one if it is that."""
    # On another device to look at the last one would mean to wait for it.
    if last is not None and last.numel() == 1 and last.dtype == dtype and last.is_cpu and float(last) == value:
        return last
    return torch.full([1] * like.dim(), value, dtype=dtype, device=like.device)


def _inverse_root(
    kappa: Tensor, sides: tuple[Tensor, Tensor] | None, scale: float, dtype: torch.dtype, last: Tensor | None
) -> Tensor:
    """min(largest, sqrt(scale / kappa) a b), sides a, b broadcastable to kappa; 0 where kappa is 0."""
    rows = columns = None
    matrix = kappa if kappa.dim() == 2 else kappa.reshape(1, -1)
    if sides is not None:
        out, into = sides
        if kappa.dim() == 2 and out.shape == (kappa.shape[0], 1) and into.shape == (1, kappa.shape[1]):
            rows, columns = out.reshape(-1), into.reshape(-1)
        else:
            kappa, both = torch.broadcast_tensors(kappa, out * into)
            matrix, columns = kappa.reshape(1, -1), both.reshape(-1)
    to = None
    if last is not None and last.shape == kappa.shape:
        to = last if matrix is kappa else last.view(matrix.shape)
    root = _native.inverse_root(matrix, rows, columns, scale, dtype, to)
    return last if last is not None and root is to else root.view(kappa.shape)


def balancing_ratios(
    measured: Measure, parameters: Mapping[str, Tensor], rho: float, names: Container[str]
) -> dict[str, Tensor | None]:
    """What takes a step in whitened coordinates to balanced ones, sqrt(K at rho = 1) / sqrt(K); None for ones."""
    weight = _flow_power(measured, parameters, (rho - 1) / 4)
    ratios: dict[str, Tensor | None] = {}
    for name in (name for name in measured.kappa if name in names):
        edges = measured.spaces.edges_on(name, parameters[name].device)
        free = weight is not None and measured.is_free(name)
        ratios[name] = weight[edges.out] * weight[edges.into] if free else None  # type: ignore[index]
    return ratios

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
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd import _native
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
    for name, through in measured.flow.items():
        phi[measured.spaces.edges[name].out.reshape(-1)] = through
    for name, kappa1 in measured.kappa1.items() if not measured.flow else ():
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


def metric(
    measured: Measure, parameters: Mapping[str, Tensor], rho: float, only: Container[str] | None = None
) -> dict[str, Tensor]:
    """K of every parameter (or of some), broadcastable to its shape; 1 for parameters that no rescaling changes."""
    has_flow = rho and measured.log_gamma_sq > -math.inf  # without any path mass there are no shares of it
    weight = path_flow(measured, parameters).clamp(min=LEAST_FLOW) ** (rho / 2) if has_flow else None
    result = {}
    for name, kappa in measured.kappa.items():
        if only is not None and name not in only:
            continue
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


def clip_factor(norm: float, clip: float | None) -> float:
    """min(1, clip / norm); 0 for a norm that is not finite, so that one bad batch moves nothing."""
    if clip is None:
        return 1.0
    if not math.isfinite(norm):
        return 0.0
    return 1.0 if norm <= clip else clip / norm


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

        grad <- grad / kappa            by default, the paper's direction
        grad <- grad / K                with `relative` or `rho`, the metric of this module

    Use it between `backward()` and the step of any optimiser, as `clip_grad_norm_` is used. It records the model anew
    at every call; `pathsgd.optim.wrap` does the same before each step of an optimiser and records once per shape.

    terms: "first" kappa1, "both" kappa1 + kappa2. clip: bound on the dual norm sqrt(sum grad^2 / kappa), which
    rescaling does not change; a gradient whose dual norm is not finite becomes zero.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> model(torch.ones(3, 4)).pow(2).mean().backward()
    >>> dual_norm = path_normalize_grad_(model, torch.ones(3, 4))
    """
    parameters = {name: p for name, p in model.named_parameters() if p.grad is not None}
    if not parameters:
        return torch.zeros((), dtype=torch.float64)
    with torch.enable_grad():  # kappa is a derivative
        measured = Geometry(model, output).measure(inputs, terms)
    inverses = inverse_metric(measured, dict(model.named_parameters()), rho, relative=relative or rho != 0)
    return scale_gradients_(parameters, inverses, clip)


@torch.no_grad()
def scale_gradients_(parameters: Mapping[str, Tensor], inverses: Mapping[str, Tensor], clip: float | None) -> Tensor:
    """grad <- grad * inverse metric, clipped to a dual norm; returns that norm before. Every grad must be there."""
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    refuse_sparse(list(grads), list(grads.values()))
    # In float64: 1/kappa may leave the range of the gradient's own dtype where the product does not.
    scaled = {name: grad.double() * inverses[name] for name, grad in grads.items()}
    norm = torch.stack([(grads[name] * scaled[name]).sum() for name in grads]).sum().sqrt()
    factor = clip_factor(float(norm), clip)
    for name, grad in grads.items():
        grad.copy_(scaled[name].mul_(factor)) if factor else grad.zero_()
    return norm


def _scale(measured: Measure, rho: float, relative: bool, log_unit: float | None) -> float:
    """What 1/kappa, counted in gamma^2, is multiplied by to be counted in what was asked for."""
    if not relative and rho:
        raise ValueError("rho needs the relative metric: path flow is a share of gamma^2")
    if relative and log_unit is None:
        return 1.0
    return math.exp(min((log_unit or 0.0) - measured.log_scale, 709.0))  # the largest that float64 holds


def inverse_metric(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    rho: float,
    *,
    relative: bool,
    log_unit: float | None = None,
) -> dict[str, Tensor]:
    """1/K of every parameter, float64; zero where no path uses it.

    relative: the metric of this module; False: 1/kappa, the paper's, for every parameter. log_unit: count kappa in
    exp(log_unit) instead of the present gamma^2, which changes from step to step.
    """
    scale = _scale(measured, rho, relative, log_unit)
    metrics = metric(measured, parameters, rho) if relative else measured.kappa
    found = {name: inverse(K) for name, K in metrics.items()}
    free = {name for name in found if not relative or measured.is_free(name)}
    found = {name: value * scale if name in free else value for name, value in found.items()}
    zero = torch.zeros((), dtype=torch.float64)
    return {name: found.get(name, zero.expand([1] * p.dim())) for name, p in parameters.items()}


def whitenings(
    measured: Measure,
    parameters: Mapping[str, Tensor],
    rho: float,
    *,
    relative: bool,
    log_unit: float | None = None,
    last: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """1/sqrt(K) of every parameter in its dtype, broadcastable to its shape; the root of `inverse_metric`.

    Zero where no path uses it, and never infinite: inf * 0 would be no step. Kept at size 1 where it is constant.
    last: an earlier result that nobody needs any more; it is written over where it fits.
    """
    last = last or {}
    scale = _scale(measured, rho, relative, log_unit)
    has_flow = rho and measured.log_gamma_sq > -math.inf
    weight = path_flow(measured, parameters).clamp(min=LEAST_FLOW) ** (rho / 4) if has_flow else None
    found: dict[str, Tensor] = {}
    made: dict[Any, Tensor] = {}  # several biases may have one and the same kappa
    for name, p in parameters.items():
        kappa = measured.kappa.get(name)
        if kappa is None or (relative and not measured.is_free(name)):
            found[name] = _constant(0.0 if kappa is None else 1.0, p, last.get(name))
            continue
        sides = None
        if weight is not None:
            edges = measured.spaces.edges[name]
            sides = weight[edges.out], weight[edges.into]
        key = name if sides else (id(kappa), p.dtype, p.device)
        if key not in made:
            over = last.get(name)
            over = None if over is None or any(over is other for other in made.values()) else over
            made[key] = _inverse_root(kappa, sides, scale, p.dtype, over).to(p.device)
        found[name] = made[key]
    return found


def _constant(value: float, like: Tensor, last: Tensor | None) -> Tensor:
    """`value` in a tensor of size 1 that has as many dimensions as `like`; the last one if it is that."""
    if last is not None and last.numel() == 1 and last.dtype == like.dtype and float(last) == value:
        return last
    return torch.full([1] * like.dim(), value, dtype=like.dtype, device=like.device)


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
    native = _native.inverse_root(matrix, rows, columns, scale, dtype, to)
    if native is not None:
        return last if last is not None and native is to else native.view(kappa.shape)
    inverse = torch.where(matrix > 0, (scale / matrix.double()).sqrt(), 0.0)
    for side in (None if rows is None else rows[:, None], columns):
        inverse = inverse if side is None else inverse * side
    return inverse.clamp(max=torch.finfo(dtype).max).to(dtype).view(kappa.shape)


def balancing_ratios(
    measured: Measure, parameters: Mapping[str, Tensor], rho: float, names: Container[str]
) -> dict[str, Tensor | None]:
    """What takes a step in whitened coordinates to balanced ones, sqrt(K at rho = 1) / sqrt(K); None for ones."""
    found: dict[str, Tensor | None] = {}
    has_flow = rho != 1 and measured.log_gamma_sq > -math.inf
    weight = None
    for name in measured.kappa:
        if name not in names:
            continue
        found[name] = None
        if has_flow and measured.is_free(name):
            if weight is None:
                weight = path_flow(measured, parameters).clamp(min=LEAST_FLOW) ** ((rho - 1) / 4)
            edges = measured.spaces.edges[name]
            found[name] = weight[edges.out] * weight[edges.into]
    return found


def spectral_norm(matrix: Tensor, start: Tensor, iterations: int = 2) -> tuple[float, Tensor]:
    """Largest singular value by power iteration from `start` (n,), and the vector to start from next time.

    A few iterations suffice from step to step: the dominant direction of successive updates changes slowly, and what
    is missed in one step is found in the next.
    """
    native = _native.spectral_norm(matrix, start, iterations)
    if native is not None:
        return native
    largest = torch.linalg.vector_norm(matrix, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return size, start
    unit, v = matrix / largest, start  # entries up to 1, and v of length 1: in the range of any dtype
    for _ in range(iterations):
        v = torch.mv(unit.t(), torch.mv(unit, v))
        v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    v = v / torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
    return size * float(torch.linalg.vector_norm(torch.mv(unit, v))), v


def refuse_sparse(names: Sequence[str], grads: Sequence[Tensor]) -> None:
    for name, grad in zip(names, grads):
        if grad.is_sparse:
            raise RuntimeError(f"the gradient of '{name}' is sparse; use a dense one (Embedding(sparse=False))")

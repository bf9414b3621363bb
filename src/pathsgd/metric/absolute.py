"""The metric without its size: steps that do not grow with the weights.

K = kappa / gamma^2 measures an entry against the current net, so a learning rate is a share of
every matrix, however large it has become. Adam's steps are absolute: as weights grow, their share
falls. Here the pattern of K is measured anew each time, but its overall size is fixed at the first
measurement, by one number for each parameter:

    mean over p's entries of log(1/sqrt(K_abs))  =  B[from] - B[to],    for ever

B is one number for each layer of units, 0 for inputs and outputs. A recurrent matrix leads from a
layer to itself: its mean is 0. Rescaling units changes the mean of log(1/sqrt(K)) only by a
difference of two layers' numbers. B is the least-squares fit of those means, so it absorbs this
difference, and the steps are invariant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.distributed.spread import whole
from pathsgd.kernels.mean_log import mean_log as mean_log_of
from pathsgd.kernels.whiten import Outer
from pathsgd.metric.geometry import Measure
from pathsgd.metric.whitening import WhiteningOf, Whitenings
from pathsgd.network.rules.base import FIXED

Layer = bytes
"""A layer of units, by the numbers of its nodes."""
ENDS: Layer = b""
"""Inputs and outputs."""


@dataclass
class Joint:
    """All edges from one layer to another: count, sum of logarithms, and whether they ever move."""

    entries: int = 0
    logs: float = 0.0
    frozen: bool = False


def resized(
    whitenings: Mapping[str, WhiteningOf], log_sizes: Mapping[str, float], *, in_place: bool = False
) -> Whitenings:
    """1/sqrt(K_abs) from 1/sqrt(K): gives parameters in `log_sizes` that mean logarithm.

    in_place: `whitenings` is no longer needed and may be overwritten.
    """
    result = Whitenings(whitenings)
    result.prepared = whitenings.prepared if isinstance(whitenings, Whitenings) else None
    for name, size in log_sizes.items():
        whitening = whitenings[name]
        if isinstance(whitening, Tensor) and not whitening.is_cpu:
            result[name] = whitening * _factor(whitening, size)
            continue
        mean = mean_log(whitening)
        if not math.isfinite(mean):
            continue
        grid = _grid(whitening)
        factor = math.exp(round((size - mean) * grid) / grid)
        if in_place:
            (whitening.rows if isinstance(whitening, Outer) else whitening).mul_(factor)
        elif isinstance(whitening, Outer):
            result[name] = Outer(whitening.rows * factor, whitening.columns)
        else:
            result[name] = whitening * factor
    return result


def _factor(whitening: Tensor, size: float) -> Tensor:
    """The same factor as a tensor on the device: nobody waits for it."""
    mean = whole(whitening.detach()).double().log().mean()
    grid = _grid(whitening)
    return torch.where(mean.isfinite(), ((size - mean).mul(grid).round() / grid).exp(), 1.0)


def _grid(whitening: WhiteningOf) -> int:
    """Grid that log sizes are rounded to: a millionth in float32, its own rounding in float64.

    The last bits of a mean depend on the scaling of units and would spread to all it multiplies.
    """
    values = whitening.rows if isinstance(whitening, Outer) else whitening
    return 2**50 if values.dtype is torch.float64 else 2**20


def log_sizes(
    whitenings: Mapping[str, WhiteningOf], measured: Measure, parameters: Mapping[str, Tensor]
) -> dict[str, float]:
    """B[from] - B[to] of every parameter, fitted to what was measured.

    Leaves out parameters that no rescaling changes and those that were not measured. Parameters
    with entries on no path have no mean to fit.
    """
    ways = {
        name: _way(measured, name)
        for name in whitenings
        if name in measured.kappa and measured.is_free(name)
    }
    joints: dict[tuple[Layer, Layer], Joint] = {}
    for name, way in ways.items():
        p, mean = parameters[name], mean_log(whitenings[name])
        if way[0] == way[1]:
            continue
        if not p.requires_grad:
            # Nothing moves it, so its weights themselves tell how its two layers are scaled.
            p = whole(p)
            joints[way] = Joint(1, mean_log(p[p != 0].abs()), frozen=True)
        elif math.isfinite(mean) and not joints.setdefault(way, Joint()).frozen:
            joints[way].entries += p.numel()
            joints[way].logs += p.numel() * mean
    numbers = _fit(joints)
    return {
        name: numbers.get(start, 0.0) - numbers.get(end, 0.0) for name, (start, end) in ways.items()
    }


def is_blocked(
    whitenings: Mapping[str, WhiteningOf], measured: Measure, parameters: Mapping[str, Tensor]
) -> bool:
    """Whether zero parameters cut off the paths of others, as a zero head does before it moves.

    A parameter that paths use in no case (one direction of a layer that is read at its last step)
    cuts off nothing.
    """
    free = [name for name in measured.kappa if measured.is_free(name)]
    used = {name: _any(whitenings[name]) for name in free}
    return not all(used.values()) and any(
        used[name] and not _any(parameters[name]) for name in free
    )


def _any(values: WhiteningOf) -> bool:
    """Whether some entry is not zero."""
    if isinstance(values, Outer):
        return _any(values.rows) and _any(values.columns)
    return bool(whole(values.detach()).any())


def mean_log(values: WhiteningOf) -> float:
    """-inf where a value is zero."""
    if isinstance(values, Outer):
        return mean_log(values.rows) + mean_log(values.columns)
    return mean_log_of(whole(values))


def _way(measured: Measure, name: str) -> tuple[Layer, Layer]:
    """The layers that a parameter leads from and to."""
    edges = measured.spaces.edges[name]
    return _layer(edges.source), _layer(edges.target)


def _layer(nodes: Tensor) -> Layer:
    return ENDS if bool((nodes == FIXED).all()) else nodes.cpu().numpy().tobytes()


_CERTAIN = 1e6
"""Weight of a frozen parameter in the fit: what it says of its layers holds."""


def _fit(joints: Mapping[tuple[Layer, Layer], Joint]) -> dict[Layer, float]:
    """The number of each layer by least squares; every joined pair of layers counts once."""
    layers = sorted({layer for pair in joints for layer in pair} - {ENDS})
    if not layers:
        return {}
    matrix = torch.zeros(len(joints), len(layers), dtype=torch.float64)
    wanted = torch.zeros(len(joints), 1, dtype=torch.float64)
    for row, ((start, end), joint) in enumerate(joints.items()):
        weight = _CERTAIN if joint.frozen else 1.0
        for layer, sign in ((start, weight), (end, -weight)):
            if layer != ENDS:
                matrix[row, layers.index(layer)] += sign
        wanted[row] = weight * joint.logs / joint.entries
    solution = torch.linalg.lstsq(matrix, wanted, driver="gelsd").solution
    return dict(zip(layers, solution.reshape(-1).tolist()))

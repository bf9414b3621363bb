"""The metric without its size: steps that do not grow with the weights.

K = kappa / gamma^2 measures an entry against the net as it is, so a learning rate is a share of every matrix, however
large that has become. Adam's steps are absolute: as weights grow, their share falls by itself. Here K keeps its shape
and loses its size, one factor for each parameter:

    K_abs = K / S_p,    S_p such that the geometric mean of K_abs over p's entries is  exp(B[from] - B[to])

B is one number for each layer of units, 0 for inputs and outputs. A recurrent matrix leads from a layer to itself: its
mean is 1. A rescaling of units changes mean log K of a parameter by a difference of two layers' numbers and nothing
else; B is the least-squares fit of those means, takes that difference up, and S_p stays the same: invariant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pathsgd.measure import Measure
from pathsgd.node_graph import Edges
from pathsgd.rules.base import FIXED

Layer = bytes
"""A layer of units, by the numbers of its nodes."""
ENDS: Layer = b""
"""Inputs and outputs."""


def layers(edges: Edges) -> tuple[Layer, Layer]:
    """The layers that a parameter leads from and to."""
    return _layer(edges.into), _layer(edges.out)


def _layer(nodes: Tensor) -> Layer:
    return ENDS if bool((nodes == FIXED).all()) else nodes.cpu().numpy().tobytes()


def absolute_whitenings(whitenings: Mapping[str, Tensor], measured: Measure) -> dict[str, Tensor]:
    """1/sqrt(K_abs) from 1/sqrt(K). Parameters with entries on no path, and those no rescaling changes, stay."""
    means = {name: _mean_log(w) for name, w in whitenings.items() if measured.is_free(name)}
    means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    joins = {name: layers(measured.spaces.edges[name]) for name in means}
    sizes = {name: measured.spaces.edges[name].out.numel() * measured.spaces.edges[name].into.numel() for name in means}
    numbers = _fit(means, joins, sizes)
    result = dict(whitenings)
    for name, mean in means.items():
        start, end = joins[name]
        result[name] = whitenings[name] * math.exp(numbers[start] - numbers[end] - mean)
    return result


def _mean_log(values: Tensor) -> float:
    """-inf where a value is zero."""
    return float(values.detach().double().log().mean())


def _fit(
    means: Mapping[str, float], joins: Mapping[str, tuple[Layer, Layer]], sizes: Mapping[str, int]
) -> dict[Layer, float]:
    """The number of each layer: least squares over pairs of layers, whatever joins the same two taken together."""
    pairs: dict[tuple[Layer, Layer], list[str]] = {}
    for name, (start, end) in joins.items():
        if start != end:
            pairs.setdefault((start, end), []).append(name)
    names = sorted({layer for pair in pairs for layer in pair} - {ENDS})
    numbers = dict.fromkeys([ENDS, *(layer for pair in joins.values() for layer in pair)], 0.0)
    if not names:
        return numbers
    matrix = torch.zeros(len(pairs), len(names), dtype=torch.float64)
    wanted = torch.zeros(len(pairs), 1, dtype=torch.float64)
    for row, ((start, end), together) in enumerate(pairs.items()):
        for layer, sign in ((start, 1.0), (end, -1.0)):
            if layer != ENDS:
                matrix[row, names.index(layer)] += sign
        entries = sum(sizes[name] for name in together)
        wanted[row] = sum(sizes[name] * means[name] for name in together) / entries
    solution = torch.linalg.lstsq(matrix, wanted, driver="gelsd").solution.reshape(-1)
    return numbers | dict(zip(names, solution.tolist()))

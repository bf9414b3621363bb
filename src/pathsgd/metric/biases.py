"""Biases beside the weights of their units: a bound on how far the metric lets them run ahead.

A bias is an edge from a node of value 1, and path sums say how much the weights contribute beside
it. They count all paths, including those that ReLUs have switched off. In a deep net without
normalisation they may say thousands where a unit really gets 1, and a bias would move in shares
of thousands. The gradients show what the units really get:

    |u_w| / |u_b|       u = grad / sqrt(K), over the rows of a layer

Rescaling does not change this ratio. Where path sums are right, it is about the fourth root of the
number of weights of a unit. Where it is below 1, a bias would outweigh all weights of its layer,
and its whitening is scaled down by the ratio.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch
from torch import Tensor

from pathsgd.distributed.spread import whole
from pathsgd.kernels.whiten import Outer
from pathsgd.metric.geometry import Measure

_ROWS = 64
"""As many units of a layer are looked at."""


def held_back(
    whitenings: Mapping[str, Tensor | Outer],
    measured: Measure,
    parameters: Mapping[str, Tensor],
    left_out: Container[str] = (),
) -> Iterator[tuple[str, Tensor | float]]:
    """What bounds 1/sqrt(K) of the biases, a factor each; none where gradients are missing."""
    lengths: dict[str, Tensor | None] = {}  # of weights: a recurrent layer has two biases
    for bias, weight in measured.spaces.biases.items():
        if bias in left_out or bias not in measured.kappa or weight not in measured.kappa:
            continue
        if weight not in lengths:
            lengths[weight] = _length(parameters[weight], whitenings[weight])
        of_weight, of_bias = lengths[weight], _length(parameters[bias], whitenings[bias])
        if of_weight is not None and of_bias is not None:
            yield bias, _factor(of_weight, of_bias)


def _factor(of_weight: Tensor, of_bias: Tensor) -> Tensor | float:
    """min(1, of_weight / of_bias); 1 if only biases learn, because all inputs are zero."""
    if of_weight.is_cpu and of_bias.is_cpu:  # elsewhere to look would mean to wait
        weight, bias = float(of_weight), float(of_bias)
        return weight / bias if 0 < weight < bias else 1.0
    ratio = (of_weight / of_bias).nan_to_num(1.0, 1.0).clamp(max=1.0)
    return torch.where(of_weight > 0, ratio, 1.0)


def _length(p: Tensor, whitening: Tensor | Outer) -> Tensor | None:
    """|u| over some rows of a parameter; None if it has no gradient."""
    if p.grad is None or p.grad.is_sparse or p.grad.shape != p.shape:
        return None
    step = -(-p.shape[0] // _ROWS)
    if isinstance(whitening, Outer):
        rows = whitening.rows[::step] * whitening.columns
    else:
        rows = whole(whitening)[::step] if whitening.shape[0] > 1 else whitening
    return torch.linalg.vector_norm(whole(p.grad.detach())[::step].to(rows.dtype) * rows)

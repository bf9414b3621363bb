"""kappa1 of several recurrent layers in closed form, in one or two directions.

The states of a layer enter the next one, so what enters differs from step to step, and a layer is
one sweep forth and one back (`kernels.stack_sums`). With A = W_rec^2, x_t what enters a layer, t =
1..T:

    h_t = A h_{t-1} + W_in^2 x_t + b^2        delta_t = A^T delta_{t+1} + what comes from above
    kappa1(W_in) = sum_t delta_t x_t^T        kappa1(W_rec) = sum_t delta_{t+1} h_t^T
    kappa1(b) = sum_t delta_t

and a direction backwards in time has t+1 and t-1 exchanged.

Range. h_t is kept as h_t decay^(t-1), delta_t as delta_t decay^(T-t), in all layers: with 1 / decay
at least the largest Perron root nothing overflows, and all products of the two have decay^(T-1).
Two directions have opposite powers, which one layer mixes for the next: they are kept as they are,
decay = 1. Where numbers leave the range all the same there is no result, and
`paths.kappa.Kappa`, the general route and this one's oracle, has a scale for every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from pathsgd.arithmetic.recurrence import perron_root
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.stack_sums import CellSums, StackSums, stack_sums
from pathsgd.kernels.whiten import Outer
from pathsgd.paths.match import Cell, StackNet
from pathsgd.paths.recurrent import FLOAT32_STEPS, next_root

_LEAST, _MOST = 1e-200, 1e200
"""gamma^2 in units of root^(T-1) is trusted between these."""
_LARGEST = {torch.float32: 1e18, torch.float64: 1e150}
"""No state or derivative may be larger: products of two are finite."""


@dataclass(frozen=True)
class StackKappa:
    """kappa1 / gamma^2, flow through units, log gamma^2 and the next root (see `PlainKappa`)."""

    kappa1: dict[str, Tensor | Outer]
    flow: dict[str, Tensor]
    log_gamma_sq: float
    next_root: float
    dtype: torch.dtype
    """What it was computed in."""
    also: Sequence[float] = ()


@torch.no_grad()
def kappa1(
    net: StackNet, parameters: Mapping[str, Tensor], root: float | None = None
) -> StackKappa | None:
    """kappa1 / gamma^2 of every parameter; None where numbers leave float64's range.

    A matrix that no path uses, whatever its weights, has none: output[-1] of a direction backwards
    in time is its first state.

    In float32 where the weights are and nothing was lost by that, else in float64.

    root: a guess of the largest Perron root, `next_root` of the last measurement; only a scale.
    """
    cells = [c for layer in net.layers for c in layer]
    is_single = all(parameters[c.w_rec].dtype is torch.float32 for c in cells)
    is_short = is_single and net.steps <= FLOAT32_STEPS
    dtypes = [torch.float32, torch.float64] if is_short else [torch.float64]
    for guess in [None] if root is None or len(net.layers[0]) > 1 else [root, None]:
        for dtype in dtypes:
            found = _measured(net, parameters, guess, dtype)
            if found is not None:
                return found
    return None


def _measured(
    net: StackNet, parameters: Mapping[str, Tensor], root: float | None, dtype: torch.dtype
) -> StackKappa | None:
    """In one dtype and with one decay; None where something has left the range, or may have."""
    if len(net.layers[0]) > 1:
        root = 1.0
    elif root is None:
        root = max(1.0, *_roots(net, parameters))
    parameters = {name: parameters[name].detach().to(dtype) for name in _names(net)}
    embedded = None
    if net.embedding is not None:
        embedded = squared_products(parameters[net.embedding], into=False)[1]
    unused = _unused(net)
    sums = stack_sums(
        [[_weights(parameters, cell) for cell in layer] for layer in net.layers],
        parameters[net.w_out], None if net.b_out is None else parameters[net.b_out], embedded,
        net.steps, net.reads,
        1 / root, [cell.w_rec in unused for cell in net.layers[-1]], (_LEAST, _MOST),
    )  # fmt: skip
    if not sums.cells or not sums.largest < _LARGEST[dtype]:
        return None
    if dtype is torch.float32 and not _is_certain(net, sums):
        return None
    cells = [cell for layer in net.layers for cell in layer]
    found = [(cell, s) for cell, s in zip(cells, sums.cells)]
    back = None
    if embedded is not None:
        lowest = [(parameters[c.w_in], s.into.double()) for c, s in found if s.w_in is None]
        products = [squared_products(w, None, into, into=False)[1] for w, into in lowest]
        back = reduce(torch.add, [product for product in products if product is not None])
    kappa, flow = _by_name(net, found, sums.out, embedded, back, dtype)
    log_scale = (net.steps - 1) * math.log(root)
    if net.b_out is not None:
        rows = net.steps if net.reads[0] is None else 1
        share = rows * (1 / root) ** (net.steps - 1) / sums.gamma_sq
        kappa[net.b_out] = torch.full((1,), share, dtype=torch.float64)
    log_gamma_sq = math.log(sums.gamma_sq) + log_scale
    return StackKappa(kappa, flow, log_gamma_sq, next_root(root, root * sums.growth), dtype)


def _roots(net: StackNet, parameters: Mapping[str, Tensor]) -> list[float]:
    """The Perron roots of the layers, roughly, from what enters and leaves each of them."""
    squares = {name: parameters[name].detach().double().square() for name in _names(net)}
    entering = None if net.embedding is None else squares[net.embedding].sum(0)
    u, v = [], [squares[net.w_out].sum(0)]
    for (cell,) in net.layers:
        w_in = squares[cell.w_in]
        entering = sum(
            (squares[bias] for bias in cell.biases),
            w_in.sum(1) if entering is None else w_in @ entering,
        )
        u.append(entering)
    for (cell,) in net.layers[:0:-1]:
        v.append(v[-1] @ squares[cell.w_in])
    return [
        perron_root(squares[c.w_rec], enters, leaves)
        for (c,), enters, leaves in zip(net.layers, u, v[::-1])
    ]


def _weights(parameters: Mapping[str, Tensor], cell: Cell) -> tuple[Tensor, Tensor, list[Tensor]]:
    return parameters[cell.w_in], parameters[cell.w_rec], [parameters[name] for name in cell.biases]


def _is_certain(net: StackNet, sums: StackSums) -> bool:
    """Whether no sum depends on a number that was too small for float32.

    As `recurrent.is_certain`: all terms are nonnegative, and a result far above what
    underflow can have taken away has lost nothing. On its way up through the layers a loss may grow
    by what each layer multiplies by: no row or column of a matrix has a larger sum than all of it.
    """
    tiny, hidden = torch.finfo(torch.float32).tiny, len(sums.cells[0].into)
    return sums.least > 1e12 * tiny * max(1.0, sums.largest) ** 2 * sums.gain * net.steps * hidden


def _unused(net: StackNet) -> set[str]:
    """The matrices that no path uses: those of directions that are read where they begin."""
    begins = (0, net.steps - 1)
    return {c.w_rec for d, c in enumerate(net.layers[-1]) if net.reads[d] == begins[d]}


def _by_name(
    net: StackNet,
    sums: Sequence[tuple[Cell, CellSums]],
    out: Tensor,
    embedded: Tensor | None,
    back: Tensor | None,
    dtype: torch.dtype,
) -> tuple[dict[str, Tensor | Outer], dict[str, Tensor]]:
    """kappa1 and flow. embedded: what each input carries; back: its derivative; None for ones."""
    kappa: dict[str, Tensor | Outer] = {net.w_out: out[None, :]}
    flow = {cell.w_rec: s.through.double() for cell, s in sums}
    unused = _unused(net)
    for cell, s in sums:
        if cell.w_rec not in unused:
            kappa[cell.w_rec] = s.recurrent
        kappa.update(dict.fromkeys(cell.biases, s.into))
        if s.w_in is not None:
            kappa[cell.w_in] = s.w_in
        else:
            rows = s.into[:, None]
            kappa[cell.w_in] = rows
            if embedded is not None:
                kappa[cell.w_in] = Outer(rows, embedded[None, :].to(dtype))
    if embedded is not None and back is not None and net.embedding is not None:
        kappa[net.embedding] = back[None, :].to(dtype)
        flow[net.embedding] = (embedded * back).double()
    return kappa, flow


def _names(net: StackNet) -> list[str]:
    """Of all parameters."""
    others = [name for name in (net.w_out, net.b_out, net.embedding) if name is not None]
    return [
        *(n for layer in net.layers for c in layer for n in (c.w_in, c.w_rec, *c.biases)),
        *others,
    ]

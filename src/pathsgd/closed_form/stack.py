"""kappa1 of several recurrent layers in closed form: [embedding ->] ReLU RNN layers, one or two directions -> linear.

The states of a layer enter the next one, so what enters differs from step to step, and a layer is one sweep forth and
one back (`_native.linear_sweep`). With A = W_rec^2, x_t what enters a layer, t = 1..T:

    h_t = A h_{t-1} + W_in^2 x_t + b^2        delta_t = A^T delta_{t+1} + what enters from above at t
    kappa1(W_in) = sum_t delta_t x_t^T        kappa1(W_rec) = sum_t delta_{t+1} h_t^T        kappa1(b) = sum_t delta_t

and a direction backwards in time has t+1 and t-1 exchanged.

Range. h_t is kept as h_t decay^(t-1), delta_t as delta_t decay^(T-t), in all layers: with 1 / decay at least the
largest Perron root nothing overflows, and all products of the two have decay^(T-1). Two directions have opposite
powers, which one layer mixes for the next: they are kept as they are, decay = 1. Where numbers leave the range all the
same there is no result, and `quantities.kappa.Kappa`, the general route and this one's oracle, has a scale for every
step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pathsgd._native import Outer, linear_sweep, squared_products, stack_sums
from pathsgd.arithmetic.perron import perron_root
from pathsgd.closed_form.kappa import FLOAT32_STEPS
from pathsgd.closed_form.match import Cell, StackNet

_LEAST, _MOST = 1e-200, 1e200
"""gamma^2 in units of root^(T-1) is trusted between these."""
_LARGEST = {torch.float32: 1e18, torch.float64: 1e150}
"""No state or derivative may be larger: products of two are finite."""


@dataclass(frozen=True)
class StackKappa:
    """As `closed_form.kappa.PlainKappa` has them: kappa1 / gamma^2, flow through units, log gamma^2, the next root."""

    kappa1: dict[str, Tensor | Outer]
    flow: dict[str, Tensor]
    log_gamma_sq: float
    next_root: float
    dtype: torch.dtype
    """What it was computed in."""
    also: Sequence[float] = ()


@torch.no_grad()
def kappa1(net: StackNet, parameters: Mapping[str, Tensor], root: float | None = None) -> StackKappa | None:
    """kappa1 / gamma^2 of every parameter, constant dimensions at size 1; None where numbers leave float64's range.

    A matrix that no path uses, whatever its weights, has none: output[-1] of a direction backwards in time is its first
    state.

    In float32 where the weights are and nothing was lost by that, else in float64.

    root: a guess of the largest Perron root, `next_root` of the last measurement; only a scale.
    """
    is_single = all(parameters[c.w_rec].dtype is torch.float32 for layer in net.layers for c in layer)
    dtypes = [torch.float32, torch.float64] if is_single and net.steps <= FLOAT32_STEPS else [torch.float64]
    for guess in [None] if root is None or len(net.layers[0]) > 1 else [root, None]:
        for dtype in dtypes:
            found = _by_kernel(net, parameters, guess, dtype)
            if not isinstance(found, StackKappa) and found is not _OUT_OF_RANGE:
                found = _Passes(net, parameters, guess, dtype).kappa1()
            if isinstance(found, StackKappa):
                return found
    return None


_OUT_OF_RANGE = object()


def _by_kernel(net: StackNet, parameters: Mapping[str, Tensor], root: float | None, dtype: torch.dtype) -> Any:
    """The same as `_Passes` in one native call; None where there is none for these tensors."""
    if parameters[net.w_out].dtype is not dtype:
        return None
    if len(net.layers[0]) > 1:
        root = 1.0
    elif root is None:
        matrices = (parameters[cell.w_rec].double().square() for (cell,) in net.layers)
        root = max(1.0, *map(perron_root, matrices))
    embedded = None if net.embedding is None else squared_products(parameters[net.embedding], into=False)[1]
    unused = _unused(net)
    sums = stack_sums(
        [[_weights(parameters, cell) for cell in layer] for layer in net.layers],
        parameters[net.w_out], None if net.b_out is None else parameters[net.b_out], embedded, net.steps, net.reads,
        1 / root, [cell.w_rec in unused for cell in net.layers[-1]], (_LEAST, _MOST),
    )  # fmt: skip
    if sums is None:
        return None
    if not _LEAST < sums.gamma_sq < _MOST or not sums.largest < _LARGEST[dtype]:
        return _OUT_OF_RANGE
    if dtype is torch.float32 and not _is_certain(net, sums.least, sums.largest, sums.gain, len(sums.cells[0].into)):
        return _OUT_OF_RANGE
    cells = [cell for layer in net.layers for cell in layer]
    found = [_CellSums(cell, s.into, s.through, s.recurrent, s.w_in) for cell, s in zip(cells, sums.cells)]
    back = None
    if embedded is not None:
        lowest = [(parameters[s.cell.w_in], s.into.double()) for s in found if s.w_in is None]
        products = [squared_products(w, None, into, into=False)[1] for w, into in lowest]
        back = reduce(torch.add, [product for product in products if product is not None])
    kappa, flow = _by_name(net, found, sums.out, embedded, back, dtype)
    log_scale = (net.steps - 1) * math.log(root)
    if net.b_out is not None:
        rows = net.steps if net.reads[0] is None else 1
        share = rows * (1 / root) ** (net.steps - 1) / sums.gamma_sq
        kappa[net.b_out] = torch.full((1,), share, dtype=torch.float64)
    growth = root * sums.growth
    next_root = max(1.0, growth) if 0 < growth < math.inf else root
    return StackKappa(kappa, flow, math.log(sums.gamma_sq) + log_scale, next_root, dtype)


def _weights(parameters: Mapping[str, Tensor], cell: Cell) -> tuple[Tensor, Tensor, list[Tensor]]:
    return parameters[cell.w_in], parameters[cell.w_rec], [parameters[name] for name in cell.biases]


@dataclass(frozen=True)
class _CellSums:
    """What a direction of a layer has after both passes."""

    cell: Cell
    into: Tensor
    """sum_t delta_t, (H,)."""
    through: Tensor
    """sum_t h_t .* delta_t, (H,)."""
    recurrent: Tensor
    """sum_t delta_{t+1} h_t^T, (H, H)."""
    w_in: Tensor | None
    """sum_t delta_t x_t^T, (H, I); None where x is the same at every step."""


class _Passes:
    """One pass forth and one back through the squared net, in one dtype and with one decay."""

    def __init__(self, net: StackNet, parameters: Mapping[str, Tensor], root: float | None, dtype: torch.dtype) -> None:
        self.net, self.dtype, self.directions = net, dtype, len(net.layers[0])
        self.squares = _squares(net, parameters, dtype)
        self.root = 1.0 if self.directions > 1 else self._perron_root() if root is None else root
        self.decay = 1 / self.root
        self.last_power = self.decay ** (net.steps - 1)
        if self.decay == 1:  # states that fade by themselves, or two directions
            self.fade = self.back = torch.ones(net.steps, dtype=dtype)
        else:
            powers = self.decay ** torch.arange(net.steps, dtype=torch.float64)
            self.fade, self.back = powers.to(dtype), powers.flip(0).to(dtype)

    def kappa1(self) -> StackKappa | None:
        """None where something has left the range, or may have."""
        net = self.net
        states = self._states()
        v = self.squares[net.w_out].sum(0)
        out, rows = self._read(states[-1]), net.steps if net.reads[0] is None else 1
        bias = 0.0 if net.b_out is None else rows * self.last_power * float(self.squares[net.b_out].sum())
        gamma_sq = float(v @ out) + bias
        if not _LEAST < gamma_sq < _MOST:
            return None
        sums, largest = self._go_back(states, v)
        if not largest < _LARGEST[self.dtype]:
            return None
        if self.dtype is torch.float32 and not self._is_certain(sums, out, largest):
            return None
        bases = [out, *(t for s in sums for t in (s.into, s.through, s.recurrent, s.w_in) if t is not None)]
        torch._foreach_mul_(bases, 1 / gamma_sq)
        embedded = self._embedded()
        back = None
        if embedded is not None:
            lowest = [s for s in sums if s.w_in is None]
            back = torch.stack([s.into @ self.squares[s.cell.w_in] for s in lowest]).sum(0)
        kappa, flow = _by_name(net, sums, out, embedded, back, self.dtype)
        if net.b_out is not None:
            kappa[net.b_out] = torch.full((1,), rows * self.last_power / gamma_sq, dtype=torch.float64)
        log_gamma_sq = math.log(gamma_sq) + (net.steps - 1) * math.log(self.root)
        return StackKappa(kappa, flow, log_gamma_sq, self._next_root(states[-1]), self.dtype)

    def _perron_root(self) -> float:
        return max(1.0, *(perron_root(self.squares[cell.w_rec].double()) for (cell,) in self.net.layers))

    def _next_root(self, top: Tensor) -> float:
        """The growth of the highest states from the last step but one to the last."""
        if self.directions > 1 or len(top) == 1:
            return self.root
        last, before = top[-1].sum(), top[-2].sum()
        growth = self.root * float(last / before)
        return max(1.0, growth) if 0 < growth < math.inf else self.root

    def _embedded(self) -> Tensor | None:
        """What each input carries, (I,); None for ones."""
        return None if self.net.embedding is None else self.squares[self.net.embedding].sum(0)

    def _states(self) -> list[Tensor]:
        """All states of each layer, (T, directions * H)."""
        states: list[Tensor] = []
        embedded = self._embedded()
        for layer in self.net.layers:
            sides = []
            for direction, cell in enumerate(layer):
                w_in, biases = self.squares[cell.w_in], [self.squares[name] for name in cell.biases]
                if not states:
                    same = w_in.sum(1) if embedded is None else w_in @ embedded
                    u = torch.outer(self.fade, reduce(torch.add, biases, same))
                else:
                    u = states[-1] @ w_in.t()
                    if biases:
                        u.addr_(self.fade, reduce(torch.add, biases))
                sides.append(self._swept(cell, u, backwards=direction == 1))
            states.append(sides[0] if len(sides) == 1 else torch.cat(sides, 1))
        return states

    def _swept(self, cell: Cell, u: Tensor, *, backwards: bool, adjoint: bool = False) -> Tensor:
        """(T, H): the recurrence of one direction, or its adjoint, which goes the other way."""
        A = self.squares[cell.w_rec]
        A = A if self.decay == 1 else A * self.decay
        return linear_sweep(A.t() if adjoint else A, u[:, None], backwards=backwards != adjoint)[:, 0]

    def _sides(self, t: Tensor) -> Iterator[Tensor]:
        """The parts of the directions, of what lies side by side in the last dimension."""
        return iter(t.chunk(self.directions, -1))

    def _read(self, top: Tensor) -> Tensor:
        """What the output layer has read, (directions * H,)."""
        sides = zip(self._sides(top), self.net.reads)
        return torch.cat([self.back @ h if at is None else h[at] * self.back[at] for h, at in sides])

    def _entering_from_above(self, v: Tensor) -> Tensor:
        """What the output layer adds to the derivatives of the highest states, (T, directions * H)."""
        if self.net.reads[0] is None:
            return torch.outer(self.back, v)
        entering = v.new_zeros(self.net.steps, len(v))
        for side, part, at in zip(self._sides(entering), self._sides(v), self.net.reads):
            side[at] = part * self.back[at]
        return entering

    def _go_back(self, states: Sequence[Tensor], v: Tensor) -> tuple[list[_CellSums], float]:
        """The sums of all cells, and the largest state or derivative."""
        sums, derivatives = [], []
        above = self._entering_from_above(v)
        for index in range(len(self.net.layers) - 1, -1, -1):
            below = states[index - 1] if index else None
            entering = above
            sides = zip(self.net.layers[index], self._sides(states[index]), self._sides(entering))
            for direction, (cell, h, from_above) in enumerate(sides):
                delta = self._swept(cell, from_above, backwards=direction == 1, adjoint=True)
                later, earlier = (delta[1:], h[:-1]) if direction == 0 else (delta[:-1], h[1:])
                recurrent = later.t() @ earlier
                sums.append(
                    _CellSums(
                        cell,
                        self.fade @ delta,
                        (h * delta).sum(0),
                        recurrent if self.decay == 1 else recurrent.mul_(self.decay),
                        None if below is None else delta.t() @ below,
                    )
                )
                if below is not None:
                    w_in = self.squares[cell.w_in]
                    above = delta @ w_in if direction == 0 else above.addmm_(delta, w_in)
                derivatives.append(delta)
        return sums, max(float(t.amax()) for t in (*states, *derivatives))

    def _is_certain(self, sums: Sequence[_CellSums], out: Tensor, largest: float) -> bool:
        """Whether no sum depends on a number that was too small for float32.

        As `closed_form.kappa.is_certain`: all terms are nonnegative, and a result far above what underflow can have
        taken away has lost nothing. On its way up through the layers a loss may grow by what each layer multiplies by.
        """
        gain = 1.0
        for layer in self.net.layers[1:]:  # no row or column of a matrix has a larger sum than all of it
            gain *= max(1.0, *(float(self.squares[c.w_in].sum()) for c in layer))
        results = [out, *(s.into for s in sums), *(s.w_in for s in sums if s.w_in is not None)]
        if self.net.steps > 1:
            results += [s.recurrent for s in sums if s.cell.w_rec not in _unused(self.net)]
        least = min(float(t.amin()) for t in results)
        return _is_certain(self.net, least, largest, gain, max(len(s.into) for s in sums))


def _is_certain(net: StackNet, least: float, largest: float, gain: float, hidden: int) -> bool:
    lost = torch.finfo(torch.float32).tiny * max(1.0, largest) ** 2 * gain * net.steps * hidden
    return least > 1e12 * lost


def _unused(net: StackNet) -> set[str]:
    """The matrices that no path uses: those of directions that are read where they begin."""
    begins = (0, net.steps - 1)
    return {c.w_rec for d, c in enumerate(net.layers[-1]) if net.reads[d] == begins[d]}


def _by_name(
    net: StackNet,
    sums: Sequence[_CellSums],
    out: Tensor,
    embedded: Tensor | None,
    back: Tensor | None,
    dtype: torch.dtype,
) -> tuple[dict[str, Tensor | Outer], dict[str, Tensor]]:
    """kappa1 and flow. embedded: what each input carries; back: its derivative; None for ones."""
    kappa: dict[str, Tensor | Outer] = {net.w_out: out[None, :]}
    flow = {s.cell.w_rec: s.through.double() for s in sums}
    unused = _unused(net)
    for s in sums:
        if s.cell.w_rec not in unused:
            kappa[s.cell.w_rec] = s.recurrent
        kappa.update({bias: s.into for bias in s.cell.biases})
        if s.w_in is not None:
            kappa[s.cell.w_in] = s.w_in
        else:
            rows = s.into[:, None]
            kappa[s.cell.w_in] = rows if embedded is None else Outer(rows, embedded[None, :].to(dtype))
    if embedded is not None and back is not None and net.embedding is not None:
        kappa[net.embedding], flow[net.embedding] = back[None, :].to(dtype), (embedded * back).double()
    return kappa, flow


def _squares(net: StackNet, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The squared weights, all of them in one operation."""
    others = [name for name in (net.w_out, net.b_out, net.embedding) if name is not None]
    names = [*(n for layer in net.layers for c in layer for n in (c.w_in, c.w_rec, *c.biases)), *others]
    weights = [parameters[name].to(dtype) for name in names]
    return dict(zip(names, torch._foreach_mul(weights, weights)))

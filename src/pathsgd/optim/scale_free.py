"""Scale-invariant rows: those that enter a channel normalised in training, or a weight norm.

A step is nearly orthogonal to such a row, so it makes the row longer. The relative metric takes
steps in shares of the row, so it would grow without limit. Its length has no effect: after each
step every row gets its previous length back,

    |row|^2 = sum over all entries that enter the unit of (p / whitening)^2

measured in the metric, in which a rescaling of earlier units changes nothing. The function does not
change, and running statistics remain valid. On a device, one call treats all rows (`FlatRows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import threshold

from pathsgd.kernels.row_lengths import row_lengths
from pathsgd.kernels.update import compute_dtype
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.optim.plan import Part
from pathsgd.torch_private import segment_sums


@dataclass(frozen=True)
class Row:
    """The entries of one parameter that enter such units."""

    part: Part
    index: int
    nodes: Tensor
    """The unit that each entry enters, broadcastable to the parameter; 0 for other units."""

    @property
    def p(self) -> Tensor:
        return self.part.params[self.index].detach()

    def squares(self) -> Tensor:
        """The parameter's share of its units' squared lengths, in the shape of `nodes`, float64."""
        p, whitening = self.p, self.part.states[self.index].dense_whitening()
        if p.dim() and self.nodes.numel() == self.nodes.shape[0] == len(p):
            return row_lengths(p, whitening.expand(p.shape))
        squares = torch.where(whitening > 0, p / whitening, 0.0).square().double()
        dims = [d for d in range(p.dim()) if self.nodes.shape[d] == 1 and p.shape[d] > 1]
        return squares.sum(dims, keepdim=True) if dims else squares


class ScaleFreeRows:
    """The rows of some parts: `remember` before a step, `keep_lengths` after; no host transfer."""

    def __init__(self, parts: Sequence[Part], spaces: NodeSpaces) -> None:
        self.parts, self.spaces = parts, spaces
        self._count = spaces.count + 1
        self._rows = list(_rows(parts, spaces))
        self._home = self._rows[0].p.device if self._rows else torch.device("cpu")
        self._flat = FlatRows(self._rows, self._count) if _lie_alike(self._rows) else None
        nodes = self._rows if self._flat is None else ()
        self._nodes = [row.nodes.reshape(-1).to(self._home) for row in nodes]
        self._lengths = torch.zeros(0)

    def remember(self) -> None:
        """Take the lengths that the rows have now."""
        if self._flat is not None:
            self._flat.remember()
        elif self._rows:
            self._lengths = self._measured()
            self._lengths[:1].zero_()  # units whose lengths are felt

    def keep_lengths(self) -> None:
        """Give every row the length back that it had."""
        if self._flat is not None:
            self._flat.keep_lengths()
        elif self._rows:
            self._stretch()

    def _stretch(self) -> None:
        ratios = (self._lengths / self._measured()).nan_to_num_(
            1.0, 1.0, 1.0
        )  # a row that is zero stays as it is
        factors = torch.where(self._lengths > 0, ratios, 1.0).sqrt_()
        for row, nodes in zip(self._rows, self._nodes):
            p = row.p
            p.mul_(factors[nodes].view(row.nodes.shape).to(p.device, compute_dtype(p.dtype)))

    def _measured(self) -> Tensor:
        """The squared length of what enters each unit, (count,), float64."""
        totals = []
        for spread in {row.part.spread for row in self._rows}:
            own = torch.zeros(self._count, dtype=torch.float64, device=self._home)
            for row, nodes in zip(self._rows, self._nodes):
                if row.part.spread == spread:
                    own.index_add_(0, nodes, row.squares().reshape(-1).to(self._home))
            totals.append(own if spread is None else spread.summed(own))
        return totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)


def _lie_alike(rows: Sequence[Row]) -> bool:
    """Whether all are on one device other than the CPU, and sharded in the same way."""
    devices, spreads = {row.p.device for row in rows}, {row.part.spread for row in rows}
    return len(devices) == len(spreads) == 1 and not rows[0].p.is_cpu


def _rows(parts: Sequence[Part], spaces: NodeSpaces) -> Iterator[Row]:
    names = {name for part in parts for name in part.names}
    # A row of which a part stays (frozen, or without a gradient) cannot be given another length.
    free = [node for node, entering in spaces.scale_free.items() if entering <= names]
    if not free:
        return
    kept = torch.zeros(spaces.count + 1, dtype=torch.bool)
    kept[free] = True
    for part in parts:
        for index, (name, owner) in enumerate(zip(part.names, part.owners)):
            out = spaces.edges[name].target if name in spaces.edges else None
            if out is not None and bool(kept[out].any()):
                nodes = torch.where(kept[out], out, 0)
                if part.spread is not None:
                    nodes = part.own(nodes.expand(owner.shape))
                yield Row(part, index, nodes)


class FlatRows:
    """Such rows, all on one device and sharded in one way: few operations for any number of rows.

    Copies of the parameters before and after the step are stored end to end in one tensor, with the
    unit and 1/whitening of each entry beside it, 8 bytes in all. Adjacent entries that enter the
    same unit are added first, in order; then their few sums are added by unit. Adding all entries
    by unit at once would be in no fixed order on a GPU, so processes would differ in the last bits.

    count: units, and the fixed one.
    """

    def __init__(self, rows: Sequence[Row], count: int) -> None:
        self._rows, self._count = rows, count
        self._sizes = [row.p.numel() for row in rows]
        device = rows[0].p.device
        units = torch.cat([row.nodes.expand(row.p.shape).reshape(-1) for row in rows])
        of_runs, lengths = torch.unique_consecutive(units, return_counts=True)
        ends = lengths.cumsum(0)
        before_and_after = [torch.zeros(1, dtype=torch.int64), ends, len(units) + ends]
        self._runs = torch.cat(before_and_after).to(device, non_blocking=True)
        self._units_of_runs = torch.cat([of_runs, count + of_runs]).to(device, non_blocking=True)
        self._units = units.int().to(device, non_blocking=True)
        self._nothing = torch.zeros(2 * count, dtype=torch.float64, device=device)
        self._dtype = max(
            (compute_dtype(row.p.dtype) for row in rows), key=lambda dtype: dtype.itemsize
        )
        self._before = self._nothing
        self._whitenings: list[Any] = []
        self._inverse: Tensor | None = None

    def remember(self) -> None:
        """Take a copy of the rows as they are now."""
        self._before = torch.cat(self._entries())

    def keep_lengths(self) -> None:
        """Give every row the length back that it had."""
        both = torch.empty(2 * len(self._units), dtype=torch.float64, device=self._units.device)
        torch.cat([self._before, *self._entries()], out=both)
        both.view(2, -1).mul_(self._inverse_whitenings())
        before, after = self._squares(both.square_())
        ratios = threshold(before / after, 0.0, 1.0)  # a row that was zero stays as it is
        factors = torch.empty(self._count, dtype=self._dtype, device=both.device)
        torch.sqrt(ratios, out=factors).nan_to_num_(
            1.0, 1.0, 1.0
        )  # and so does one that is zero now
        of_entries = factors.index_select(0, self._units).split(self._sizes)
        params = [row.p for row in self._rows]
        torch._foreach_mul_(params, [f.view(p.shape) for f, p in zip(of_entries, params)])

    def _entries(self) -> list[Tensor]:
        return [row.p.reshape(-1) for row in self._rows]

    def _squares(self, squares: Tensor) -> Tensor:
        """Squared length of what enters each unit, before and after, (2, count); 0 if not free."""
        sums = self._nothing.index_add(0, self._units_of_runs, segment_sums(squares, self._runs))
        spread = self._rows[0].part.spread
        return (sums if spread is None else spread.summed(sums)).view(2, -1)

    def _inverse_whitenings(self) -> Tensor:
        """1/whitening of each entry, 0 if that is 0 or the row not free; cached by measurement."""
        states = [row.part.states[row.index] for row in self._rows]
        whitenings = [state.whitening for state in states]
        known = self._whitenings
        if self._inverse is None or any(now is not then for now, then in zip(whitenings, known)):
            of_rows = [
                s.dense_whitening().expand(row.p.shape).reshape(-1)
                for s, row in zip(states, self._rows)
            ]
            flat = torch.cat(of_rows)
            inverse = torch.where((flat > 0) & (self._units > 0), 1 / flat, 0.0)
            # Written over the last one: who has captured a step reads there.
            self._inverse = inverse if self._inverse is None else self._inverse.copy_(inverse)
            self._whitenings = whitenings
        return self._inverse

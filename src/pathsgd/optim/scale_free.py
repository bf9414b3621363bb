"""Rows whose length nothing feels: those that enter a channel which is normalised while training, or a weight norm.

A step is orthogonal to such a row, nearly, so it makes the row longer; and as the relative metric takes steps in shares
of the row, it would grow for ever. Its length is free: after each step every row gets the length back that it had,

    |row|^2 = sum over all entries that enter the unit of (p / whitening)^2

measured in the metric, in which a rescaling of the units before it changes nothing. The function does not change, and
running statistics stay those of the function. On a device the same is done for all rows at once (flat_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.kernels.row_lengths import row_lengths
from pathsgd.kernels.update import compute_dtype
from pathsgd.network.node_spaces import NodeSpaces
from pathsgd.optim.flat_rows import FlatRows
from pathsgd.optim.parts import Part, whitening_of


@dataclass(frozen=True)
class Row:
    """The entries of one parameter that enter such units."""

    part: Part
    index: int
    nodes: Tensor
    """The unit that each entry enters, of size 1 along dimensions in which it does not change; 0 for other units."""

    @property
    def p(self) -> Tensor:
        return self.part.params[self.index].detach()

    def squares(self) -> Tensor:
        """The squared lengths that the parameter brings into its units, in the shape of `nodes`, float64."""
        p, whitening = self.p, whitening_of(self.part.states[self.index])
        if p.dim() and self.nodes.numel() == self.nodes.shape[0] == len(p):
            return row_lengths(p, whitening)
        squares = torch.where(whitening > 0, p / whitening, 0.0).square().double()
        dims = [d for d in range(p.dim()) if self.nodes.shape[d] == 1 and p.shape[d] > 1]
        return squares.sum(dims, keepdim=True) if dims else squares


class ScaleFreeRows:
    """The rows of some parts; `remember` before a step, `keep_lengths` after it. Nothing leaves their device."""

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
    """Whether all lie on one device that is not the CPU, and are spread over processes in one way."""
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

"""Rows whose length nothing feels: those that enter a channel which is normalised while training, or a weight norm.

A step is orthogonal to such a row, nearly, so it makes the row longer; and as the relative metric takes steps in shares
of the row, it would grow for ever. Its length is free: after each step every row gets the length back that it had,

    |row|^2 = sum over all entries that enter the unit of (p / whitening)^2

measured in the metric, in which a rescaling of the units before it changes nothing. The function does not change, and
running statistics stay those of the function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathsgd._native import row_lengths
from pathsgd.optim.parts import Part, whitening_of
from pathsgd.optim.shards import Spread
from pathsgd.passes.node_spaces import NodeSpaces


class ScaleFreeRows:
    """The rows of some parts, as they are before a step."""

    def __init__(self, parts: Sequence[Part], spaces: NodeSpaces) -> None:
        self._rows: list[tuple[Tensor, Tensor, Tensor, Spread | None]] = []
        self._count = spaces.count + 1
        names = {name for part in parts for name in part.names}
        loose = spaces.scale_free
        # A row of which a part stays (frozen, or without a gradient) cannot be given another length.
        if not loose or not any(entering <= names for entering in loose.values()):
            return
        kept = torch.zeros(self._count, dtype=torch.bool)
        kept[[node for node, entering in loose.items() if entering <= names]] = True
        for part in parts:
            for name, p, owner, state in zip(part.names, part.params, part.owners, part.states):
                out = spaces.edges[name].out if name in spaces.edges else None
                if out is not None and bool(kept[out].any()):
                    nodes = torch.where(kept[out], out, 0)
                    if part.spread is not None:
                        nodes = part.own(nodes.expand(owner.shape))
                    self._rows.append((p, whitening_of(state), nodes, part.spread))
        self._lengths = self._measured()

    def _measured(self) -> Tensor:
        totals = {spread: torch.zeros(self._count, dtype=torch.float64) for *_, spread in self._rows}
        for p, whitening, nodes, spread in self._rows:
            totals[spread].scatter_add_(0, *_squares(p.detach(), whitening, nodes))
        for spread, total in totals.items():
            if spread is not None:
                total.copy_(spread.summed(total.to(self._rows[0][0].device)))
        return torch.stack(list(totals.values())).sum(0) if totals else torch.zeros(0)

    def keep_lengths(self) -> None:
        """Give every row its length back."""
        if not self._rows:
            return
        after = self._measured()
        factors = torch.where((after > 0) & (self._lengths > 0), self._lengths / after, 1.0).sqrt()
        factors[0] = 1.0
        for p, _, nodes, _ in self._rows:
            p.mul_(factors[nodes].to(p))


def _squares(p: Tensor, whitening: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes, and the squared lengths that a parameter brings into them."""
    if p.dim() and nodes.numel() == nodes.shape[0] == len(p):
        return nodes.reshape(-1), row_lengths(p, whitening).cpu()
    squares = torch.where(whitening > 0, p / whitening, 0.0).square()
    dims = [d for d in range(p.dim()) if nodes.shape[d] == 1 and p.shape[d] > 1]
    squares = (squares.sum(dims, keepdim=True) if dims else squares).double().cpu()
    return nodes.expand(squares.shape).reshape(-1), squares.reshape(-1)

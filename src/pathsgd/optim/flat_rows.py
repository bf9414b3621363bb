"""Rows whose length nothing feels, on a GPU or another device: a dozen operations, however many parameters there are.

The same as in scale_free.py. Copies of the parameters, before the step and after it, lie end to end in one tensor, and
one operation works on all of them. Beside each entry its unit and 1/whitening are kept, eight bytes in all.

Entries that follow one another and enter one unit are added first, in their order, and the few sums that come out of
that are added by units. To add entries by units at once would be one operation less; but then a GPU adds them in
whatever order they come, and processes that must agree bit for bit would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import threshold

from pathsgd.kernels.update import compute_dtype
from pathsgd.optim.parts import whitening_of
from pathsgd.torch_private import segment_sums

if TYPE_CHECKING:
    from pathsgd.optim.scale_free import Row


class FlatRows:
    """Such rows, all on one device and spread over processes in one way; `count` units, and the fixed one."""

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
        self._whitenings: list[Tensor] = []
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
        """The squared length of what enters each unit, before and after, (2, count); 0 for units that feel it."""
        sums = self._nothing.index_add(0, self._units_of_runs, segment_sums(squares, self._runs))
        spread = self._rows[0].part.spread
        return (sums if spread is None else spread.summed(sums)).view(2, -1)

    def _inverse_whitenings(self) -> Tensor:
        """1/whitening of every entry, 0 where that is 0 or the length is felt; made anew after each measurement."""
        states = [row.part.states[row.index] for row in self._rows]
        whitenings = [state["whitening"] for state in states]
        known = self._whitenings
        if self._inverse is None or any(now is not then for now, then in zip(whitenings, known)):
            of_rows = [
                whitening_of(s).expand(row.p.shape).reshape(-1)
                for s, row in zip(states, self._rows)
            ]
            flat = torch.cat(of_rows)
            inverse = torch.where((flat > 0) & (self._units > 0), 1 / flat, 0.0)
            # Written over the last one: who has captured a step reads there.
            self._inverse = inverse if self._inverse is None else self._inverse.copy_(inverse)
            self._whitenings = whitenings
        return self._inverse

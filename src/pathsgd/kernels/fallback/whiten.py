"""1/sqrt(K) in float64, rounded once; nothing is kept as an outer product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathsgd.kernels.whiten import Lines, Whitening


def whiten(
    w: Whitening, sides: tuple[Tensor, Tensor] | None, scale: float, dtype: torch.dtype
) -> Tensor:
    kappa = (
        w.kappa if isinstance(w.kappa, Tensor) else w.kappa.rows.double() * w.kappa.columns
    ).double()
    root = torch.where(kappa > 0, (scale / kappa).sqrt(), 0.0)
    if sides is not None:
        for factors in _factors(w.lines, sides[0] if w.out_side is None else w.out_side, sides[1]):
            root = root * factors
    return root.clamp(max=torch.finfo(dtype).max).to(dtype)


def _factors(lines: Lines, out_side: Tensor, into_side: Tensor) -> list[Tensor]:
    factors = []
    for nodes, side in ((lines.row_out, out_side), (lines.row_into, into_side)):
        if nodes is not None:
            factors.append(side[nodes.to(side.device)][:, None])
    for nodes, side in ((lines.column_out, out_side), (lines.column_into, into_side)):
        if nodes is not None:
            columns = side[nodes.to(side.device)].repeat_interleave(lines.repeat)
            factors.append(columns[None, : lines.columns])
    return factors

"""1/sqrt(K) of many parameters, against loops over their entries."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pathsgd.kernels.whiten import Lines, Outer, WhitenRequest, whiten

NODES = torch.tensor([1, 2, 3, 4, 5, 6, 7])
LINES = {
    "a linear map": Lines(7, 6, 1, row_out=NODES, column_into=NODES[:6]),
    "a convolution": Lines(7, 6, 3, row_out=NODES, column_into=NODES[:2].clone()),
    "a transposed one": Lines(7, 6, 2, row_into=NODES, column_out=NODES[:3].clone()),
    "one number for each unit": Lines(7, 1, 1, row_out=NODES, row_into=NODES),
    "no nodes at all": Lines(7, 6),
}


def said(nodes: Tensor | None, side: list[float], at: int) -> float:
    return 1.0 if nodes is None else side[int(nodes[at])]


def expected(
    kappa: Tensor, lines: Lines, sides: tuple[Tensor, Tensor], scale: float, largest: float
) -> Tensor:
    out, into = (side.tolist() for side in sides)
    result = torch.zeros(lines.rows, lines.columns, dtype=torch.float64)
    for r in range(lines.rows):
        for c in range(lines.columns):
            k, piece = float(kappa.expand(lines.rows, lines.columns)[r, c]), c // lines.repeat
            factor = said(lines.row_out, out, r) * said(lines.row_into, into, r)
            factor *= said(lines.column_out, out, piece) * said(lines.column_into, into, piece)
            result[r, c] = min(largest, math.sqrt(scale) * factor / math.sqrt(k)) if k > 0 else 0.0
    return result


@pytest.mark.parametrize(
    "dtypes", [(torch.float32,) * 2, (torch.float64, torch.float32), (torch.float64,) * 2]
)
@pytest.mark.parametrize("form", ["matrix", "rows", "columns", "number", "outer"])
@pytest.mark.parametrize("lines", LINES.values(), ids=LINES.keys())
def test_every_form_of_kappa(kernel, lines: Lines, form: str, dtypes) -> None:
    torch.manual_seed(0)
    rows, columns = (
        torch.rand(lines.rows, 1, dtype=dtypes[0]),
        torch.rand(1, lines.columns, dtype=dtypes[0]),
    )
    rows[2], columns[0, -1] = 0, 1e-30
    matrix = torch.rand(lines.rows, lines.columns, dtype=dtypes[0])
    kappas = {
        "matrix": matrix,
        "rows": rows,
        "columns": columns,
        "number": rows[:1],
        "outer": Outer(rows, columns),
    }
    kappa = kappas[form]
    sides = torch.rand(8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    # Several at once, with room from an earlier call or without.
    (first,) = whiten([WhitenRequest(kappa, lines)], sides, 4.0, dtypes[1])
    again = whiten(
        [WhitenRequest(kappa, lines), WhitenRequest(kappa, lines, first)], sides, 4.0, dtypes[1]
    )
    wanted = expected(
        kappa.rows.double() * kappa.columns.double() if isinstance(kappa, Outer) else kappa,
        lines, sides, 4.0, torch.finfo(dtypes[1]).max,
    )  # fmt: skip
    for found in again:
        dense = found.dense() if isinstance(found, Outer) else found
        assert dense.dtype == dtypes[1]
        tolerance = 1e-6 if torch.float32 in dtypes else 1e-14
        torch.testing.assert_close(dense.double().expand_as(wanted), wanted, rtol=tolerance, atol=0)


def test_nothing_is_infinite(kernel) -> None:
    kappa = torch.full((3, 2), 1e-38)
    (found,) = whiten([WhitenRequest(kappa, Lines(3, 2))], None, 1e300, torch.float32)
    assert bool(torch.as_tensor(found).isfinite().all())


def test_an_outer_product_that_would_not_fit_is_written_out(kernel) -> None:
    rows, columns = (
        torch.tensor([[1e-40], [1e40]], dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.float64),
    )
    lines = Lines(2, 2, 1, row_out=NODES[:2].clone(), column_into=NODES[:2].clone())
    sides = torch.ones(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    (found,) = whiten([WhitenRequest(Outer(rows, columns), lines)], sides, 1.0, torch.float32)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found.double(), (1 / rows.sqrt()).expand(2, 2), rtol=1e-6, atol=0)

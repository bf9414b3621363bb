"""kappa2's sum: the sweep, and whichever certified short cut is taken, against the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.arithmetic import second_order


def by_definition(A: Tensor, before: Tensor, delta: Tensor) -> Tensor:
    steps = len(before)
    total = torch.zeros_like(A)
    for n in range(steps - 1):
        lagged = sum(torch.outer(delta[s + n + 1], before[s]) for s in range(steps - n - 1))
        total += torch.linalg.matrix_power(A, n).T * lagged
    return total


def sequences(A: Tensor, steps: int, every_step: bool) -> tuple[Tensor, Tensor]:
    u, v = torch.rand(2, len(A), dtype=torch.double) + 0.01
    before, delta = [torch.zeros_like(u)], [v]
    for _ in range(steps - 1):
        before.append(A @ before[-1] + u)
        delta.append(A.T @ delta[-1] + (v if every_step else 0))
    return torch.stack(before), torch.stack(delta[::-1])


MATRICES = {
    "uniform": lambda n: (torch.rand(n, n, dtype=torch.double) * 0.2 - 0.1).square() * 50 / n,
    "normal": lambda n: (torch.randn(n, n, dtype=torch.double) / n**0.5).square(),
    "identity": lambda n: torch.eye(n, dtype=torch.double),
    "near identity": lambda n: (
        torch.eye(n, dtype=torch.double) + 0.01 * torch.randn(n, n, dtype=torch.double)
    ).square(),
    "triangular": lambda n: torch.rand(n, n, dtype=torch.double).triu(1),
    "zero": lambda n: torch.zeros(n, n, dtype=torch.double),
    "cyclic": lambda n: torch.eye(n, dtype=torch.double).roll(1, 0),
}


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("every_step", [False, True])
@given(hidden=st.integers(1, 9), steps=st.integers(1, 40), seed=st.integers(0, 99))
@settings(max_examples=8)
def test_both_routes_equal_the_definition(
    matrix: str, every_step: bool, hidden: int, steps: int, seed: int
) -> None:
    torch.manual_seed(seed)
    A = MATRICES[matrix](hidden)
    before, delta = sequences(A, steps, every_step)
    expected = by_definition(A, before, delta)
    torch.testing.assert_close(
        second_order.exact_sum(A, before, delta), expected, rtol=1e-10, atol=0
    )
    short = second_order.second_order_sum(A, before, delta, adjoint=not every_step, tolerance=1e-7)
    torch.testing.assert_close(short, expected, rtol=1e-6, atol=0)


@given(
    hidden=st.integers(1, 5),
    steps=st.integers(1, 30),
    seed=st.integers(0, 99),
    constant=st.booleans(),
)
@settings(max_examples=40)
def test_ratios_are_factors_of_every_use(
    hidden: int, steps: int, seed: int, constant: bool
) -> None:
    """r_t multiplies the use of A at step t: two uses get their own factors and all between."""
    torch.manual_seed(seed)
    A, before, delta = (
        torch.rand(*shape, dtype=torch.double)
        for shape in ((hidden, hidden), *[(steps, hidden)] * 2)
    )
    ratios = (
        (torch.rand(1, dtype=torch.double) + 0.3).expand(steps)
        if constant
        else torch.rand(steps).double() + 0.3
    )
    expected = torch.zeros_like(A)
    for n in range(steps - 1):
        for s in range(steps - n - 1):
            factor = ratios[s : s + n + 2].prod()
            expected += (
                factor
                * torch.linalg.matrix_power(A, n).T
                * torch.outer(delta[s + n + 1], before[s])
            )
    found = second_order.second_order_sum(A, before, delta, ratios=ratios, tolerance=1e-9)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)

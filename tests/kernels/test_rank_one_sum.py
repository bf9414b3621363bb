"""kappa2's sum by powers that approach rank one, against its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.rank_one_sum import certified_powers, dominant, prefix_sums, rank_one_sum

DOUBLE = torch.float64


def by_definition(A: Tensor, before: Tensor, delta: Tensor) -> Tensor:
    """Every pair of a state and a derivative, with the power of A between them."""
    before, delta, power = before.double(), delta.double(), torch.eye(len(A), dtype=DOUBLE)
    total = torch.zeros_like(A)
    for n in range(len(before) - 1):
        for s in range(len(before) - n - 1):
            total += power.T * torch.outer(delta[s + n + 1], before[s])
        power = power @ A
    return total


def with_gap(hidden: int) -> Tensor:
    return (torch.rand(hidden, hidden, dtype=DOUBLE) + 0.1) / hidden


def sequences(A: Tensor, steps: int, adjoint: bool) -> tuple[Tensor, Tensor]:
    """States of any kind; derivatives led back by A, or of any kind."""
    before = torch.rand(steps, len(A), dtype=DOUBLE) + 0.1
    delta = torch.rand(steps, len(A), dtype=DOUBLE) + 0.1
    for t in range(steps - 2, -1, -1):
        delta[t] = A.T @ delta[t + 1] if adjoint else delta[t]
    return before, delta


@settings(max_examples=40)
@given(
    steps=st.integers(9, 70),
    hidden=st.integers(1, 37),
    adjoint=st.booleans(),
    is_double=st.booleans(),
    size=st.sampled_from([0.3, 1.0, 1.5]),
    seed=st.integers(0, 2**20),
)
def test_it_is_the_sum_of_all_pairs(
    kernel: str, steps: int, hidden: int, adjoint: bool, is_double: bool, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    A = with_gap(hidden) * size
    before, delta = sequences(A, steps, adjoint)
    tolerance = 1e-10 if is_double else 1e-5
    given_to_it = (before, delta) if is_double else (before.float(), delta.float())
    found = rank_one_sum(A, *given_to_it, tolerance, adjoint=adjoint)
    if found is not None:  # short sequences allow few powers, small matrices may have a small gap
        # Twice: of the powers, and of the derivatives that stand for one another.
        torch.testing.assert_close(
            found, by_definition(A, before, delta), rtol=3 * tolerance, atol=0
        )
    assert found is not None or steps < 50 or hidden < 13


def test_it_is_for_matrices_with_a_gap_only(kernel: str) -> None:
    torch.manual_seed(0)
    before, delta = sequences(with_gap(12), 40, False)
    swapped = torch.eye(12, dtype=DOUBLE).roll(1, 0)
    for A in (
        torch.eye(12, dtype=DOUBLE),
        swapped,
        torch.zeros(12, 12, dtype=DOUBLE),
        with_gap(12).triu(1),
    ):
        assert rank_one_sum(A, before, delta, 1e-6, adjoint=False) is None
    for bad in (math.nan, math.inf):
        A = with_gap(12)
        A[3, 5] = bad
        assert rank_one_sum(A, before, delta, 1e-6, adjoint=False) is None


@pytest.mark.parametrize("adjoint", [False, True])
def test_what_float32_cannot_hold_is_computed_in_float64(kernel: str, adjoint: bool) -> None:
    torch.manual_seed(0)
    A = with_gap(6)
    before, delta = sequences(A, 40, adjoint)
    alpha = torch.tensor(
        [1, 1, 1e-25, 1, 1, 1], dtype=DOUBLE
    )  # rescaled: the sum of two uses has its square
    A, before, delta = A * alpha[:, None] / alpha, (before * alpha).float(), (delta / alpha).float()
    found = rank_one_sum(A, before, delta, 1e-5, adjoint=adjoint)
    assert found is not None and 0 < float(found.min()) < torch.finfo(torch.float32).tiny
    torch.testing.assert_close(found, by_definition(A, before, delta), rtol=3e-5, atol=0)


def test_memory_in_any_order(kernel: str) -> None:
    torch.manual_seed(0)
    A = with_gap(8)
    before, delta = sequences(A, 20, True)
    wanted = rank_one_sum(A, before, delta, 1e-6, adjoint=True)
    found = rank_one_sum(
        A.t().contiguous().t(), before.t().contiguous().t(), delta, 1e-6, adjoint=True
    )
    assert found is not None
    torch.testing.assert_close(found, wanted)


def test_what_does_not_fit_is_refused(kernel: str) -> None:
    A, rows = with_gap(4), torch.rand(10, 4, dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"A \(4, 3\)"):
        rank_one_sum(A[:, :3], rows, rows, 1e-6, adjoint=False)
    with pytest.raises(ValueError, match=r"float32"):
        rank_one_sum(A.float(), rows, rows, 1e-6, adjoint=False)
    with pytest.raises(ValueError, match=r"delta \(9, 4\)"):
        rank_one_sum(A, rows, rows[1:], 1e-6, adjoint=False)
    with pytest.raises(ValueError, match="8 steps"):
        rank_one_sum(A, rows[:8], rows[:8], 1e-6, adjoint=False)


def test_the_certificate_holds_for_later_powers() -> None:
    torch.manual_seed(0)
    A = (torch.randn(40, 40, dtype=DOUBLE) / 40**0.5).square()
    perron = dominant(A, torch.ones(40), torch.ones(40), 1e-9)
    assert perron is not None
    powers = certified_powers(A / perron.root, perron, 48, 1e-6)
    assert powers is not None and 1 < len(powers) < 47
    limit = torch.outer(perron.right, perron.left)
    for n in (len(powers) + 1, len(powers) + 8):
        power = torch.linalg.matrix_power(A / perron.root, n)
        assert float((power / limit - 1).abs().max()) <= 1.001e-6


@pytest.mark.parametrize("length", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0, 1.3])
def test_prefix_sums(length: int, ratio: float) -> None:
    torch.manual_seed(0)
    x = torch.rand(length, 3, dtype=DOUBLE)
    expected = [x[0]]
    for row in x[1:]:
        expected.append(ratio * expected[-1] + row)
    torch.testing.assert_close(prefix_sums(x, ratio), torch.stack(expected), rtol=1e-12, atol=0)

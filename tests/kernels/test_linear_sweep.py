"""The sweep through a linear recurrence against one product at a time, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.linear_sweep import linear_sweep


def step_by_step(
    A: Tensor, u: Tensor, start: Tensor | None, ratios: Tensor | None, *, backwards: bool
) -> list[list[list[float]]]:
    """The same in plain Python."""
    steps, rows, hidden = u.shape
    entries, given_u = A.double().tolist(), u.double().tolist()
    before = [[0.0] * hidden] * rows if start is None else start.double().tolist()
    factors = [1.0] * steps if ratios is None else ratios.tolist()
    result: list[list[list[float]]] = [[]] * steps
    for t in range(steps - 1, -1, -1) if backwards else range(steps):
        before = [
            [
                factors[t] * sum(a * b for a, b in zip(line, row)) + x
                for line, x in zip(entries, entering)
            ]
            for row, entering in zip(before, given_u[t])
        ]
        result[t] = before
    return result


@settings(max_examples=40)
@given(
    steps=st.integers(1, 7),
    rows=st.integers(1, 9),
    hidden=st.integers(1, 37),
    options=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 2**20),
)
def test_it_is_a_product_at_a_time(
    kernel: str, steps: int, rows: int, hidden: int, options: tuple[bool, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    is_double, turned, backwards, has_start, has_ratios = options
    dtype = torch.float64 if is_double else torch.float32
    A, u = (
        torch.rand(hidden, hidden, dtype=dtype) / hidden,
        torch.rand(steps, rows, hidden, dtype=dtype),
    )
    A = A.t() if turned else A
    start = torch.rand(rows, hidden, dtype=dtype) if has_start else None
    ratios = torch.rand(steps, dtype=torch.float64) * 2 if has_ratios else None
    found = linear_sweep(A, u, start, ratios, backwards=backwards)
    wanted = torch.tensor(
        step_by_step(A, u, start, ratios, backwards=backwards), dtype=torch.float64
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-12 if is_double else 1e-5, atol=0)


def test_memory_in_any_order(kernel: str) -> None:
    A, u = torch.rand(8, 8)[::2, ::2] / 4, torch.rand(4, 2, 5).permute(2, 1, 0)
    start, ratios = torch.rand(4, 2).t(), torch.rand(10, dtype=torch.float64)[::2]
    found = linear_sweep(A, u, start, ratios)
    copies = [t.contiguous() for t in (A, u, start, ratios)]
    torch.testing.assert_close(found, linear_sweep(*copies))


def test_what_does_not_fit_is_refused(kernel: str) -> None:
    A, u = torch.rand(4, 4), torch.rand(3, 2, 4)
    with pytest.raises(ValueError, match=r"A \(4, 3\)"):
        linear_sweep(A[:, :3], u)
    with pytest.raises(ValueError, match=r"start \(1, 4\)"):
        linear_sweep(A, u, torch.rand(1, 4))
    with pytest.raises(ValueError, match="3 ratios"):
        linear_sweep(A, u, None, torch.rand(3))
    with pytest.raises(ValueError, match="3 ratios"):
        linear_sweep(A, u, None, torch.rand(2, dtype=torch.float64))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("has_ratios", [False, True])
def test_states_that_stand_still_are_the_computed_ones(
    kernel: str, backwards: bool, has_ratios: bool
) -> None:
    """Bit for bit what one step at a time gives, also where something new enters later."""
    torch.manual_seed(0)
    A, steps = torch.rand(9, 9) / 30, 60
    u = torch.rand(2, 9).expand(steps, 2, 9).contiguous()
    u[40] += 1
    ratios = torch.ones(steps, dtype=torch.float64)
    ratios[50:] = 0.5
    found = linear_sweep(A, u, None, ratios if has_ratios else None, backwards=backwards)
    order = range(steps - 1, -1, -1) if backwards else range(steps)
    before = None
    for t in order:
        ratio = ratios[t : t + 1] if has_ratios else None
        before = linear_sweep(A, u[t : t + 1], before, ratio)[0]
        # Torch's own products round differently for one row than for several steps.
        assert (
            torch.equal(found[t], before) if kernel != "torch" else torch.allclose(found[t], before)
        )
    assert kernel == "torch" or torch.equal(found[20], found[21])  # it has stood still in between

"""What nodes say to their edges against plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd.kernels.whiten import flow_sides

numbers = st.one_of(st.just(0.0), st.floats(1e-300, 1e10))


@settings(max_examples=60)
@given(
    pairs=st.lists(st.tuples(numbers, st.floats(1e-10, 1.0)), min_size=1, max_size=20),
    rho=st.floats(0.1, 1.0),
)
def test_they_are_powers_of_bounded_flow(
    kernel: str, pairs: list[tuple[float, float]], rho: float
) -> None:
    for exponent in (rho / 4, 0.25):
        flow, least = torch.tensor(pairs, dtype=torch.float64).t()
        out, into = flow_sides(flow, least, exponent)
        for (f, lowest), o, i in zip(pairs, out.tolist(), into.tolist()):
            bounded = max(f, lowest)
            assert i == pytest.approx(bounded**exponent, rel=1e-13)
            assert o == pytest.approx(
                bounded**exponent * (math.sqrt(f / bounded) if f > 0 else 1.0), rel=1e-13
            )


def test_what_is_no_number_stays_none(kernel: str) -> None:
    out, into = flow_sides(
        torch.tensor([math.nan], dtype=torch.float64), torch.ones(1, dtype=torch.float64), 0.25
    )
    assert into.isnan().all() and out.isnan().all()


def test_what_does_not_fit_is_refused(kernel: str) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        flow_sides(torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64), 0.25)

"""kappa2's sum near a multiple of the identity, against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arithmetic.test_second_order import by_definition, sequences
from pathsgd.arithmetic.second_order import near_identity_sum

DOUBLE = torch.float64


@given(
    hidden=st.integers(1, 9),
    steps=st.integers(2, 60),
    seed=st.integers(0, 99),
    spread=st.sampled_from([0, 1e-4, 1e-2]),
    size=st.sampled_from([0.1, 0.9, 1.0, 1.1]),
    every_step=st.booleans(),
    is_double=st.booleans(),
)
@settings(max_examples=80)
def test_it_is_the_definition(
    hidden: int,
    steps: int,
    seed: int,
    spread: float,
    size: float,
    every_step: bool,
    is_double: bool,
) -> None:
    torch.manual_seed(seed)
    weights = size**0.5 * torch.eye(hidden, dtype=DOUBLE) + spread * torch.randn(
        hidden, hidden, dtype=DOUBLE
    )
    A = weights.square()
    before, delta = sequences(A, steps, every_step)
    tolerance = 1e-11 if is_double else 1e-5
    if not is_double:
        before, delta = before.float(), delta.float()
    found = near_identity_sum(A, before, delta, tolerance)
    if found is not None:
        torch.testing.assert_close(
            found, by_definition(A, before.double(), delta.double()), rtol=2 * tolerance, atol=0
        )
    assert found is not None or spread > 0 or not bool((before[-1] > 0).all())


def test_it_is_taken_near_the_identity_and_nowhere_else() -> None:
    torch.manual_seed(0)
    eye, noise = torch.eye(100, dtype=DOUBLE), torch.randn(100, 100, dtype=DOUBLE)
    for weights, is_near in (
        (eye, True),
        (3 * eye, True),
        (eye + 1e-4 * noise, True),
        (eye + noise, False),
    ):
        A = (weights / torch.linalg.matrix_norm(weights, 2)).square()
        found = near_identity_sum(A, *sequences(A, 100, False), 1e-6)
        assert (found is not None) == is_near


@pytest.mark.parametrize("what", ["nothing kept", "a unit that nothing reaches", "not a number"])
def test_others_are_left_alone(what: str) -> None:
    A = torch.eye(4, dtype=DOUBLE)
    before, delta = sequences(A, 30, False)
    if what == "nothing kept":
        A[1, 1] = 0
    elif what == "not a number":
        A[1, 1] = torch.nan
    else:
        before[:, 1] = 0
    assert near_identity_sum(A, before, delta, 1e-6) is None

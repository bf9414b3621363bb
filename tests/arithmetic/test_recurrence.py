"""The linear recurrence against its definition, its derivatives against finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.arithmetic import recurrence
from pathsgd.arithmetic.recurrence import States, states
from pathsgd.arithmetic.scaled import Scaled

DOUBLE = torch.float64


def plain_states(A: Tensor, u: Tensor, h0: Tensor) -> Tensor:
    h, found = h0, []
    for u_t in u:
        h = h @ A.T + u_t
        found.append(h)
    return torch.stack(found)


def scaled(values: Tensor, log_scale: float = 0.0) -> Scaled:
    return Scaled(values, torch.tensor(log_scale, dtype=DOUBLE))


def value(found: States) -> Tensor:
    return found.mantissa * found.log_scale.exp()[:, None, None]


@settings(max_examples=40)
@given(
    st.integers(1, 4), st.integers(1, 12), st.integers(1, 2), st.booleans(), st.booleans(),
    st.floats(-3, 3),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_states_follow_their_definition(
    hidden: int, steps: int, rows: int, starts: bool, unroll: bool, log_scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    A, u = torch.rand(hidden, hidden, dtype=DOUBLE), torch.rand(steps, rows, hidden, dtype=DOUBLE)
    h0 = torch.rand(rows, hidden, dtype=DOUBLE)
    found = states(
        scaled(A, log_scale), scaled(u, 0.5), scaled(h0) if starts else None, unroll=unroll
    )
    factor = torch.tensor([log_scale, 0.5], dtype=DOUBLE).exp()
    expected = plain_states(factor[0] * A, factor[1] * u, h0 if starts else torch.zeros_like(h0))
    torch.testing.assert_close(value(found), expected, rtol=1e-12, atol=0)


def arguments(seed: int = 0) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    shapes = (2, 2), (3, 2, 2), (2, 2)
    differentiable = [torch.rand(shape, dtype=DOUBLE, requires_grad=True) for shape in shapes]
    return (*differentiable, torch.tensor([0.5, 2.0, 1.5], dtype=DOUBLE))


@pytest.mark.parametrize("backwards", [False, True])
def test_its_derivatives_are_right_and_can_be_differentiated_again(backwards: bool) -> None:
    assert torch.autograd.gradcheck(recurrence._LinearRecurrence.apply, (*arguments(), backwards))
    assert torch.autograd.gradgradcheck(
        recurrence._LinearRecurrence.apply, (*arguments(), backwards)
    )


def test_the_sweep_and_the_unrolled_form_agree() -> None:
    torch.testing.assert_close(recurrence._swept(*arguments()), recurrence._unrolled(*arguments()))


def test_the_sweep_backwards_is_that_of_the_turned_sequence() -> None:
    A, u, start, ratios = (t.detach() for t in arguments())
    turned = recurrence._swept(A, u.flip(0), start, ratios.flip(0)).flip(0)
    torch.testing.assert_close(
        recurrence._LinearRecurrence.apply(A, u, start, ratios, True), turned
    )

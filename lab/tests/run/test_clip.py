"""The lab's clip: torch's, and a direction where torch's norm overflows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pathsgd_lab.run.optimisers.base import clip_gradients_


def parameters(*gradients: list[float]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(len(values))) for values in gradients]
    for p, values in zip(made, gradients, strict=True):
        p.grad = torch.tensor(values)
    return made


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=4),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_it_is_torch_s_in_every_bit_where_that_does_not_overflow(
    one: list[float], other: list[float], limit: float
) -> None:
    ours, theirs = parameters(one, other), parameters(one, other)
    clip_gradients_(ours, limit)
    nn.utils.clip_grad_norm_(theirs, limit)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(ours, theirs, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0.1, 1.0, 30.0])
def test_a_gradient_whose_squares_overflow_keeps_its_direction(limit: float) -> None:
    found = parameters([3e25, 0.0], [-4e25])
    clip_gradients_(found, limit)
    values = [value for p in found for value in p.grad.tolist()]  # type: ignore[union-attr]
    assert values == pytest.approx([0.6 * limit, 0.0, -0.8 * limit], rel=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_as_torch_leaves_it(value: float) -> None:
    ours, theirs = parameters([value, 1.0]), parameters([value, 1.0])
    clip_gradients_(ours, 1.0)
    nn.utils.clip_grad_norm_(theirs, 1.0)
    assert torch.equal(ours[0].grad.isnan(), theirs[0].grad.isnan())  # type: ignore[union-attr]


def test_parameters_without_gradients_are_left_alone() -> None:
    p = nn.Parameter(torch.ones(2))
    clip_gradients_([p], 1.0)
    assert p.grad is None

"""Nets with many units, whose sequences and units skip their zeros, against torch.nn.RNN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pathsgd.kernels import rnn_backward
from support.rnn_comparison import (
    TOLERANCE,
    assert_same,
    build,
    distance_to_a_kink,
    make_data,
    results,
)

cases = st.fixed_dictionaries(
    {
        "hidden_size": st.one_of(st.integers(1, 300), st.integers(256, 340)),
        "input_size": st.sampled_from([1, 3, 20]),
        "dtype": st.sampled_from([torch.float32, torch.float64]),
        "kind": st.sampled_from(["padded", "packed"]),
        "bidirectional": st.booleans(),
        "steps": st.integers(1, 5),
        "batch": st.integers(1, 9),
        "lengths": st.lists(st.integers(1, 5), min_size=1, max_size=9),
        "with_h0": st.booleans(),
        "shift": st.sampled_from([-8.0, -0.5, 0.0, 0.5, 8.0]),
        "seed": st.integers(0, 1000),
    }
)


def modules_and_data(draw: dict[str, Any]) -> tuple[list[torch.nn.RNN], Any]:
    """`shift` moves all biases: no unit is active, few, half, most, all of them."""
    draw = draw | dict(
        num_layers=1, bias=True, batch_first=False, needs_x=True, needs_h0=draw["with_h0"]
    )
    torch.manual_seed(draw["seed"])
    both = build(draw)
    for module in both:
        for name, parameter in module.named_parameters():
            if name.startswith("bias_ih"):
                parameter.data += draw["shift"]
    return list(both), make_data(draw)


@settings(max_examples=60)
@given(draw=cases)
def test_random_sizes(kernel: str, draw: dict[str, Any]) -> None:
    (theirs, ours), data = modules_and_data(draw)
    assume(draw["dtype"] == torch.float64 or distance_to_a_kink(theirs, data) > 1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rnn_backward, "SMALL_HIDDEN", 0)  # dW_rec after the sweep whatever the size
        found = results(ours, data, "both")
    assert_same(found, results(theirs, data, "both"), TOLERANCE[draw["dtype"]])


def example(**changes: Any) -> dict[str, Any]:
    draw = dict(
        hidden_size=300,
        input_size=3,
        dtype=torch.float32,
        kind="packed",
        bidirectional=True,
        steps=5,
        batch=9,
    )
    return draw | dict(lengths=[1, 2, 3, 4, 5], with_h0=True, shift=0.0, seed=0) | changes


def test_threads_change_no_bit(kernel: str, two_threads: None) -> None:
    """Each sum is taken in the order of its terms, by one thread.

    Only those of biases are shared.
    """
    (_, ours), data = modules_and_data(example())
    names = ["output", "h_n", "x", "h0", *(name for name, _ in ours.named_parameters())]
    by_two = dict(zip(names, results(ours, data, "both"), strict=True))
    torch.set_num_threads(1)
    by_one = dict(zip(names, results(ours, data, "both"), strict=True))
    for name in ("output", "h_n", "h0", "weight_hh_l0", "weight_hh_l0_reverse"):
        if kernel != "torch":
            assert torch.equal(by_one[name], by_two[name]), name
        assert torch.allclose(by_one[name], by_two[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", ["weight", "state", "gradient"])
def test_what_is_not_finite_meets_the_zeros(kernel: str, where: str) -> None:
    both, data = modules_and_data(example(kind="padded", bidirectional=False))
    for module in both:
        if where == "weight":
            module.weight_hh_l0.data[3, 5] = torch.inf
        if where == "state":
            module.weight_hh_l0.data[:, 5] = -1.0  # infinite, and gone a step later
    assert data.h0 is not None
    if where == "state":
        data.h0.data[0, :, 5] = torch.inf
    if where == "gradient":
        data.x.data[4, 2, 0] = torch.nan
    ours, theirs = (results(module, data, "both") for module in reversed(both))
    assert any(tensor.isnan().any() for tensor in theirs)
    for a, b in zip(ours, theirs):
        assert torch.equal(a.isnan(), b.isnan())

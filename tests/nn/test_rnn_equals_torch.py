"""pathsgd.nn.RNN against torch.nn.RNN.

Outputs and every gradient, over random settings and shapes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import pathsgd.nn
from support.rnn_comparison import (
    TOLERANCE,
    assert_same,
    build,
    distance_to_a_kink,
    make_data,
    results,
)

settings_of_an_rnn = st.fixed_dictionaries(
    {
        "input_size": st.integers(1, 20),
        "hidden_size": st.integers(1, 40),
        "num_layers": st.integers(1, 3),
        "bias": st.booleans(),
        "batch_first": st.booleans(),
        "bidirectional": st.booleans(),
        "dropout": st.sampled_from([0.0, 0.4]),
        "dtype": st.sampled_from([torch.float32, torch.float64]),
        "kind": st.sampled_from(["padded", "packed", "unbatched"]),
        "steps": st.integers(1, 9),
        "batch": st.integers(1, 11),
        "lengths": st.lists(st.integers(1, 5), min_size=1, max_size=11),
        "needs_x": st.booleans(),
        "needs_h0": st.booleans(),
        "with_h0": st.booleans(),
        "loss": st.sampled_from(["output", "h_n", "both"]),
        "training": st.booleans(),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=150)
@given(draw=settings_of_an_rnn)
def test_random_settings(kernel: str, draw: dict[str, Any]) -> None:
    single = draw["dtype"] == torch.float32
    if single or draw["num_layers"] == 1:
        draw["dropout"] = 0.0
    torch.manual_seed(draw["seed"])
    theirs, ours = build(draw)
    data = make_data(draw)
    assume(not single or distance_to_a_kink(theirs, data) > 1e-6)
    both = [results(m.train(draw["training"]), data, draw["loss"]) for m in (ours, theirs)]
    assert_same(*both, TOLERANCE[draw["dtype"]])


SIZES = {  # beyond the small random shapes: tiles of rows, deep products, many threads
    "many rows": (3, 150, 5, 33),
    "gathered rows": (9, 70, 2, 50),
    "hidden 256": (4, 9, 3, 256),
    "hidden over 256": (4, 9, 3, 300),
    "deep product": (3, 6, 20, 530),
}


@pytest.mark.parametrize("kind", ["padded", "packed"])
@pytest.mark.parametrize("size", SIZES)
def test_larger_sizes(kernel: str, size: str, kind: str, two_threads: None) -> None:
    steps, batch, input_size, hidden = SIZES[size]
    draw = dict(
        input_size=input_size, hidden_size=hidden, num_layers=1, bias=True, batch_first=False
    )
    draw |= dict(
        bidirectional=True, dtype=torch.float32, kind=kind, steps=steps, batch=batch, needs_x=True
    )
    draw |= dict(needs_h0=True, with_h0=True, lengths=list(range(1, steps + 1)))
    for seed in range(50):
        torch.manual_seed(seed)
        theirs, ours = build(draw)
        data = make_data(draw)
        if distance_to_a_kink(theirs, data) > 1e-6:
            break
    assert_same(results(ours, data, "both"), results(theirs, data, "both"), 1e-5)


def small(**changes: Any) -> dict[str, Any]:
    draw = dict(
        input_size=2, hidden_size=5, num_layers=1, bias=True, batch_first=False, bidirectional=False
    )
    draw |= dict(
        dtype=torch.float64,
        kind="padded",
        steps=4,
        batch=3,
        needs_x=True,
        needs_h0=False,
        with_h0=False,
    )
    return draw | {"lengths": [1]} | changes


def test_long_sequences_keep_their_gradients(kernel: str) -> None:
    torch.manual_seed(0)
    theirs, ours = build(small(hidden_size=30, steps=400))
    for module in (theirs, ours):
        pathsgd.nn.init.identity_(module)
    data = make_data(small(hidden_size=30, steps=400))
    assert_same(results(ours, data, "h_n"), results(theirs, data, "h_n"), 1e-10)


def test_not_a_number_is_passed_on(kernel: str) -> None:
    """A diverged net must look diverged, not dead."""
    theirs, ours = build(small())
    data = make_data(small(needs_x=False))
    data.x[1, 2, 0] = torch.nan
    found = [results(module, data, "both") for module in (ours, theirs)]
    assert found[0][0].isnan().any() and any(gradient.isnan().any() for gradient in found[0][2:])
    for a, b in zip(*found):
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("where", ["weight", "state"])
def test_infinity_times_an_inactive_unit_is_not_a_number(kernel: str, where: str) -> None:
    """Products with units at zero are skipped, but not those that torch makes a NaN of."""
    torch.manual_seed(1)
    theirs, ours = build(small(hidden_size=20, batch=9))
    data = make_data(small(hidden_size=20, batch=9, with_h0=True, needs_h0=False))
    for module in (theirs, ours):
        if where == "weight":
            module.weight_hh_l0.data[3, 5] = torch.inf
        else:  # infinite, and gone a step later
            module.weight_hh_l0.data[:, 5] = -1.0
    if where == "state":
        data.h0[0, :, 5] = torch.inf
    found = [results(module, data, "both") for module in (ours, theirs)]
    assert any(tensor.isnan().any() for tensor in found[1])
    for a, b in zip(*found):
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("hidden", [7, 40, 300])
def test_units_that_fall_silent_and_wake(kernel: str, hidden: int) -> None:
    """Nearly all units active, then few, then none, then all again, other ones in each sequence."""
    torch.manual_seed(2)
    theirs, ours = build(small(hidden_size=hidden, input_size=1, batch=10, steps=80))
    data = make_data(small(hidden_size=hidden, input_size=1, batch=10, steps=80))
    for module in (theirs, ours):
        torch.manual_seed(3)
        torch.nn.init.uniform_(module.weight_ih_l0, 0.5, 1.5)
        torch.nn.init.normal_(module.weight_hh_l0, 0, 0.5 * hidden**-0.5)
        torch.nn.init.zeros_(module.bias_ih_l0)
        torch.nn.init.zeros_(module.bias_hh_l0)
    level = torch.tensor([4.0, 0.0, -4.0, 4.0]).repeat_interleave(20).double()
    data.x.data = level[:, None, None] + 0.3 * torch.randn_like(data.x)
    states = results(theirs, data, "both")[0]
    share = (states[::20] > 0).double().mean((1, 2))
    assert share[0] > 0.9 and share[2] < 0.1 and share[3] > 0.9
    assert_same(results(ours, data, "both"), results(theirs, data, "both"), 1e-10)


MISTAKES: dict[str, Any] = {
    "features": lambda: (torch.randn(5, 3, 4), None),
    "one dimension": lambda: (torch.randn(5), None),
    "four dimensions": lambda: (torch.randn(5, 3, 2, 2), None),
    "no steps": lambda: (torch.randn(0, 3, 2), None),
    "type": lambda: (torch.randn(5, 3, 2, dtype=torch.float64), None),
    "integers": lambda: (torch.ones(5, 3, 2, dtype=torch.int64), None),
    "h0 batch": lambda: (torch.randn(5, 3, 2), torch.zeros(1, 2, 6)),
    "h0 size": lambda: (torch.randn(5, 3, 2), torch.zeros(1, 3, 5)),
    "h0 layers": lambda: (torch.randn(5, 3, 2), torch.zeros(2, 3, 6)),
    "h0 of a batch without one": lambda: (torch.randn(5, 2), torch.zeros(1, 1, 6)),
    "h0 without the batch": lambda: (torch.randn(5, 3, 2), torch.zeros(1, 6)),
    "h0 type": lambda: (torch.randn(5, 3, 2), torch.zeros(1, 3, 6, dtype=torch.float64)),
    "packed features": lambda: (pack_sequence([torch.randn(4, 3)]), None),
    "packed h0": lambda: (pack_sequence([torch.randn(4, 2)]), torch.zeros(1, 2, 6)),
    "not a tensor": lambda: ([[1.0, 2.0]], None),
    "h0 not a tensor": lambda: (torch.randn(5, 3, 2), 0.0),
    "packed sizes that rise": lambda: (
        PackedSequence(torch.randn(5, 2), torch.tensor([2, 3])),
        torch.zeros(1, 2, 6),
    ),
    "packed sizes beyond the data": lambda: (
        PackedSequence(torch.randn(3, 2), torch.tensor([2, 2])),
        None,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_raise_what_torch_raises(kernel: str, mistake: str) -> None:
    data, h0 = MISTAKES[mistake]()
    raised = []
    for module in (
        torch.nn.RNN(2, 6, nonlinearity="relu"),
        pathsgd.nn.RNN(2, 6, nonlinearity="relu"),
    ):
        with pytest.raises(Exception) as caught:
            module(data, h0)
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


def test_a_weight_of_another_shape_is_torchs_to_refuse(kernel: str) -> None:
    """The kernel must never read beyond a weight that was replaced."""
    for name, shape in (("weight_hh_l0", (6, 5)), ("weight_ih_l0", (5, 2)), ("bias_hh_l0", (3,))):
        raised = []
        for module in (
            torch.nn.RNN(2, 6, nonlinearity="relu"),
            pathsgd.nn.RNN(2, 6, nonlinearity="relu"),
        ):
            setattr(module, name, torch.nn.Parameter(torch.zeros(shape)))
            with pytest.raises(RuntimeError) as caught:
                module(torch.randn(5, 3, 2))
            raised.append(str(caught.value))
        assert raised[0] == raised[1]

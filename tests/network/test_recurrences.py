"""Which maps a net applies to its own results, however its loop is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathsgd.network.record.record import record
from pathsgd.network.recurrences import recurrences
from support.loops import LEAKS, LOOPS, UNITS, Layers, Loop, Stack

NOT_OF_THIS_KIND = {
    "two matrices": lambda m, h, u: torch.relu(m.hidden(torch.relu(h @ m.matrix)) + u),
    "no ReLU": lambda m, h, u: m.hidden(h) + u,
    "a learnt factor": lambda m, h, u: m.factor * torch.relu(m.hidden(h) + u),
    "a ReLU that lets negative values through": lambda m, h, u: nn.functional.leaky_relu(
        m.hidden(h) + u, 0.1
    ),
    "two ReLUs": lambda m, h, u: torch.relu(torch.relu(m.hidden(h) + u) - 0.5 * h),
}


def found(model, *inputs):
    return recurrences(record(model, inputs))


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name):
    body, expected = LOOPS[name]
    (recurrence,) = found(Loop(body), torch.rand(6, 3, 2))
    keep, gain = (
        torch.as_tensor(c, dtype=torch.float64) for c in (recurrence.keep, recurrence.gain)
    )
    assert (recurrence.name, recurrence.transposed, recurrence.inside) == expected[:3]
    assert torch.allclose(keep, torch.as_tensor(expected[3], dtype=torch.float64))
    assert torch.allclose(gain, torch.as_tensor(expected[4], dtype=torch.float64))
    assert recurrence.uses == 5  # the first state is zero, which no path leaves


@pytest.mark.parametrize("name", NOT_OF_THIS_KIND)
def test_other_loops_are_left_out(name):
    assert found(Loop(NOT_OF_THIS_KIND[name]), torch.rand(6, 3, 2)) == []


def test_layers_and_directions():
    uses = {
        r.name: r.uses for r in found(Layers(num_layers=2, bidirectional=True), torch.rand(7, 3, 2))
    }
    assert uses == dict.fromkeys(
        [f"rnn.weight_hh_l{end}" for end in ("0", "0_reverse", "1", "1_reverse")], 7
    )


def test_a_stack_of_tied_layers():
    (recurrence,) = found(Stack(4), torch.rand(3, 2))
    assert (recurrence.name, recurrence.uses, recurrence.keep, recurrence.gain) == (
        "tied.weight",
        4,
        0.0,
        1.0,
    )


def test_nets_without_loops():
    assert found(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.rand(3, 2)) == []
    assert LEAKS.shape == (UNITS,)

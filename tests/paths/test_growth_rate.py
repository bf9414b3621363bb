"""growth_rate of whole models, against simulation of what their loops say."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import nn

import pathsgd
from support.loops import LOOPS, Layers, Loop, Stack


def simulated_rate(step, units, starts=100, steps=3000, window=1000):
    """Growth of h <- step(h) from random states, in the long run; the largest."""
    h = torch.rand(starts, units, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logs = torch.zeros(starts, dtype=torch.float64)
    for i in range(steps):
        h = step(h)
        size = h.sum(1)
        h = torch.where(size[:, None] > 0, h / size[:, None], 0.0)
        logs += size.log() if i >= steps - window else 0.0
    return float((logs / window).exp().max())


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("seed", [0, 1])
def test_loops_against_simulation(name, seed):
    torch.manual_seed(seed)
    body, expected = LOOPS[name]
    model = Loop(body).double()
    with torch.no_grad():
        model.get_parameter(expected[0]).mul_(3)
    x = torch.rand(6, 3, 2, dtype=torch.float64)
    rate = pathsgd.growth_rate(model, x)[expected[0]]
    for name, p in model.named_parameters():
        if "bias" in name:
            nn.init.zeros_(p)
    units = len(model.get_parameter(expected[0]))
    nothing = torch.zeros(100, 2 if body is LOOPS["a cell"][0] else units, dtype=torch.float64)
    with torch.no_grad():
        simulated = simulated_rate(lambda h: body(model, h, nothing), units)
    assert float(rate) == pytest.approx(simulated, rel=1e-3, abs=1e-6)
    assert rate.lower <= rate.upper


MODELS = {
    "layers": lambda: Layers(num_layers=2, bidirectional=True),
    "stack": lambda: Stack(4),
    "loop": lambda: Loop(LOOPS["h V"][0]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(5))
def test_rescaling_changes_no_rate(name, seed):
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    x = (
        torch.rand(3, 2, dtype=torch.float64)
        if isinstance(model, Stack)
        else torch.rand(6, 3, 2, dtype=torch.float64)
    )
    before = pathsgd.growth_rate(model, x)
    pathsgd.random_rescaling(
        model, x, low=1e-2, high=1e2, generator=torch.Generator().manual_seed(1)
    )
    after = pathsgd.growth_rate(model, x)
    assert before.keys() == after.keys() and before
    for name in before:
        assert after[name].lower == pytest.approx(before[name].lower, rel=1e-10)
        assert after[name].upper == pytest.approx(before[name].upper, rel=1e-10)


def test_the_model_is_left_as_it_is():
    torch.manual_seed(0)
    model = Layers()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    pathsgd.growth_rate(model, torch.rand(4, 2, 2))
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_rate_is_a_number_and_more():
    rate = pathsgd.growth_rate(Layers(), torch.rand(9, 2, 2))["rnn.weight_hh_l0"]
    assert isinstance(rate, float) and rate == rate.lower <= rate.upper and rate.uses == 9
    copied = pickle.loads(pickle.dumps(rate))
    assert (copied, copied.upper, copied.uses) == (rate, rate.upper, 9)
    assert "upper" in repr(rate)


def test_weights_that_are_not_numbers_have_no_rate():
    model = Layers()
    with torch.no_grad():
        model.rnn.weight_hh_l0[0, 0] = math.nan
    with pytest.raises(ValueError, match="weight_hh_l0"):
        pathsgd.growth_rate(model, torch.rand(4, 2, 2))


def test_models_without_recurrence_have_no_rates():
    assert (
        pathsgd.growth_rate(
            nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.rand(1, 2)
        )
        == {}
    )

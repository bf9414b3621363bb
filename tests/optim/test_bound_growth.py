"""The bound on growth rates: for any optimiser, and as part of PathAdam and PathSGD."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import weakref

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd import PathAdam, PathSGD
from pathsgd.network.record.record import record
from pathsgd.network.recurrences import recurrences
from pathsgd.optim import bound_growth_
from pathsgd.optim.state import Growth
from pathsgd.optim.step_bound import LEAST_ROOM, make_room
from support.loops import LOOPS, Layers, Loop, Stack

LENGTH = 12


def growing(seed=0, dtype=torch.float64, **options):
    """A net whose recurrent matrices grow by more than any cap here."""
    torch.manual_seed(seed)
    model = Layers(**options).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "weight_hh" in name:
                p.mul_(4)
    return model


def inputs(dtype=torch.float64, length=LENGTH):
    return torch.rand(length, 3, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))


def train(model, optimizer, steps, after=lambda: None):
    x = inputs(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        after()


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-3),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-3),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optimiser_keeps_below_the_limit(name):
    model = growing(num_layers=2, bidirectional=True)
    x = inputs()
    train(
        model, OPTIMISERS[name](model.parameters()), 30, lambda: bound_growth_(model, x, limit=1.0)
    )
    rates = pathsgd.growth_rate(model, x)
    assert len(rates) == 4
    assert max(rates.values()) < math.exp(1.0 / LENGTH) * 1.02


@pytest.mark.parametrize("optimiser", [PathAdam, PathSGD])
@pytest.mark.parametrize(
    "options", [{"growth": 1.0}, {"growth": 1.0, "metric": "paper", "lr": 1e-6}]
)
def test_path_optimisers_keep_below_the_limit(optimiser, options):
    model = growing()
    optimizer = optimiser(model, **{"lr": 1e-2, **options})
    train(model, optimizer, 30)
    rate = float(pathsgd.growth_rate(model, inputs())["rnn.weight_hh_l0"])
    assert rate < math.exp(1.0 / LENGTH) * 1.05  # what the last step brought up is the next one's
    assert set(optimizer.growth_rates) == {"rnn.weight_hh_l0"}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_bounded(name):
    torch.manual_seed(3)
    body, expected = LOOPS[name]
    model, x = Loop(body).double(), torch.rand(6, 3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.get_parameter(expected[0]).abs_().mul_(2)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    rates = bound_growth_(model, x, limit=0.5)
    cap = math.exp(0.5 / 5)
    assert float(rates[expected[0]]) > cap
    assert float(pathsgd.growth_rate(model, x)[expected[0]]) < cap * 1.01
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {expected[0]}


@pytest.mark.parametrize("period", [2, 3])
def test_cycles_are_bounded(period):
    model, x = growing(), inputs()
    with torch.no_grad():
        W = model.rnn.weight_hh_l0
        W.zero_()
        W[:period, :period] = 1.5 * torch.eye(period).roll(1, 0)
    for _ in range(20):
        bound_growth_(model, x, limit=1.0)
    assert float(pathsgd.growth_rate(model, x)["rnn.weight_hh_l0"]) < math.exp(1 / LENGTH) * 1.001


def test_the_rates_are_those_before():
    model, x = growing(), inputs()
    expected = float(pathsgd.growth_rate(model, x)["rnn.weight_hh_l0"])
    assert float(bound_growth_(model, x)["rnn.weight_hh_l0"]) == pytest.approx(expected, rel=1e-6)


def test_what_is_below_the_limit_is_not_moved():
    model, x = Layers(), torch.rand(LENGTH, 3, 2)
    before = copy.deepcopy(model.state_dict())
    for _ in range(10):
        bound_growth_(model, x)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_frozen_matrices_are_not_moved():
    model, x = growing(), inputs()
    model.rnn.weight_hh_l0.requires_grad_(False)
    before = model.rnn.weight_hh_l0.clone()
    assert bound_growth_(model, x) == {}
    optimizer = PathAdam(model, 1e-2)
    train(model, optimizer, 3)
    assert torch.equal(before, model.rnn.weight_hh_l0) and optimizer.growth_rates == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_a_rescaled_twin_is_bounded_to_the_rescaled_net(dtype, seed):
    model, x = growing(seed, dtype), inputs(dtype)
    twin = copy.deepcopy(model)
    pathsgd.random_rescaling(
        twin, x, low=1e-2, high=1e2, generator=torch.Generator().manual_seed(seed)
    )
    for _ in range(3):
        bound_growth_(model, x, limit=1.0)
        bound_growth_(twin, x, limit=1.0)
    tolerance = 1e-9 if dtype is torch.float64 else 1e-3
    assert torch.allclose(model(x), twin(x), rtol=tolerance, atol=tolerance)
    rates = [pathsgd.growth_rate(m, x)["rnn.weight_hh_l0"] for m in (model, twin)]
    assert rates[0] == pytest.approx(rates[1], rel=tolerance)


def test_the_longest_input_seen_decides():
    model, x = growing(), inputs()
    bound_growth_(model, x, limit=1.0)
    bound_growth_(model, x[:3], limit=1.0)
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(1.05)  # below the cap of three steps, above that of twelve
    for _ in range(40):
        bound_growth_(model, x[:3], limit=1.0)
    rate = float(pathsgd.growth_rate(model, x)["rnn.weight_hh_l0"])
    assert rate < math.exp(1.0 / LENGTH) * 1.02


def test_a_horizon_of_ones_own():
    model, x = growing(), inputs()
    bound_growth_(model, x, limit=1.0, horizon=1000)
    assert float(pathsgd.growth_rate(model, x)["rnn.weight_hh_l0"]) < math.exp(1 / 1000) * 1.001


@pytest.mark.parametrize(
    "options", [{"limit": 0.0}, {"limit": math.inf}, {"horizon": -1}, {"horizon": math.nan}]
)
def test_bad_options_are_refused(options):
    model = growing()
    before = model.rnn.weight_hh_l0.clone()
    with pytest.raises(ValueError, match=next(iter(options))):
        bound_growth_(model, inputs(), **options)
    assert torch.equal(before, model.rnn.weight_hh_l0)


def test_nothing_keeps_a_model_alive():
    model = growing()
    bound_growth_(model, inputs())
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_without_recurrence():
    assert bound_growth_(nn.Linear(2, 2), torch.rand(1, 2)) == {}
    stack = Stack(3)
    assert set(bound_growth_(stack, torch.rand(1, 2))) == {"tied.weight"}


def test_half_precision_weights_are_bounded():
    model = growing(dtype=torch.bfloat16)
    bound_growth_(model, inputs(torch.bfloat16), limit=1.0)
    assert model.rnn.weight_hh_l0.dtype is torch.bfloat16
    assert (
        float(pathsgd.growth_rate(model, inputs(torch.bfloat16))["rnn.weight_hh_l0"])
        < math.exp(1.0 / LENGTH) * 1.05
    )


@pytest.mark.parametrize("refresh_every", [1, 7])
def test_a_resumed_run_continues_bit_for_bit(refresh_every):
    def make(model):
        return PathAdam(model, 1e-2, growth=0.5, refresh_every=refresh_every)

    straight, first = growing(), growing()
    optimizer = make(straight)
    train(straight, optimizer, 25)
    half = make(first)
    train(first, half, 10)
    resumed = make(second := copy.deepcopy(first))
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    train(second, resumed, 15)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters()))
    assert all(
        torch.equal(a, b)
        for a, b in zip(optimizer.growth_rates.values(), resumed.growth_rates.values())
    )


@pytest.mark.parametrize(("units", "every"), [(4, 2), (900, 2), (1300, 3)])
def test_a_matrix_is_looked_at_now_and_then(units, every):
    torch.manual_seed(0)
    model, x = nn.RNN(2, units, nonlinearity="relu"), torch.rand(3, 1, 2)
    rates = [bound_growth_(model, x)["weight_hh_l0"] for _ in range(2 * every + 1)]
    assert all(rate is rates[0] for rate in rates[:every]) and rates[every] is not rates[0]
    assert all(rate is rates[every] for rate in rates[every:-1]) and rates[-1] is not rates[every]


def test_the_step_after_a_rate_above_the_cap_is_looked_at():
    model, x = growing(), inputs()
    before = bound_growth_(model, x, limit=1.0)["rnn.weight_hh_l0"]
    after = bound_growth_(model, x, limit=1.0)["rnn.weight_hh_l0"]
    assert float(before) > math.exp(1 / LENGTH) and after is not before


def test_a_tighter_cap_is_not_left_waiting():
    model, x = growing(), inputs()
    bound_growth_(model, x[:3], limit=1.0)
    before = model.rnn.weight_hh_l0.clone()
    for _ in range(2):
        bound_growth_(model, x, limit=1.0)
    assert not torch.equal(before, model.rnn.weight_hh_l0)


def test_a_matrix_that_was_put_elsewhere_is_still_bounded():
    model, x = growing(dtype=torch.float32), inputs(torch.float32)
    for _ in range(5):
        bound_growth_(model, x, limit=1.0)
    model.double()
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(1.1)
    for _ in range(12):
        bound_growth_(model, x.double(), limit=1.0)
    assert (
        float(pathsgd.growth_rate(model, x.double())["rnn.weight_hh_l0"])
        < math.exp(1.0 / LENGTH) * 1.02
    )


def test_bounding_after_loading_leaves_the_other_optimiser_alone():
    first, second = growing(), growing(seed=1)
    one, two = (PathAdam(model, lr=1e-2, growth=1.0) for model in (first, second))
    train(first, one, 4)
    train(second, two, 1)
    two.load_state_dict(one.state_dict())
    directions = one.state[first.rnn.weight_hh_l0].growth.directions
    kept = {name: getattr(directions, name).clone() for name in ("rays", "mean")}
    train(second, two, 6)
    assert all(torch.equal(getattr(directions, name), value) for name, value in kept.items())


def test_what_calls_keep_may_lie_in_the_optimisers_state():
    straight, first, x = growing(), growing(), inputs()
    optimizer = torch.optim.Adam(straight.parameters(), 1e-2)
    train(
        straight,
        optimizer,
        20,
        lambda: bound_growth_(straight, x, limit=0.5, state=optimizer.state),
    )
    half = torch.optim.Adam(first.parameters(), 1e-2)
    train(first, half, 8, lambda: bound_growth_(first, x, limit=0.5, state=half.state))
    second = copy.deepcopy(first)
    resumed = torch.optim.Adam(second.parameters(), 1e-2)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    train(second, resumed, 12, lambda: bound_growth_(second, x, limit=0.5, state=resumed.state))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters()))


def test_a_batch_that_moves_nothing_bounds_nothing():
    model = growing()
    optimizer = PathAdam(model, 1e-2, growth=1.0)
    model(inputs()).sum().backward()
    model.out.weight.grad.fill_(math.nan)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def recurrence_of(model):
    return recurrences(record(model, (inputs(),), None))[0]


def test_room_closes_at_once_and_opens_slowly():
    recurrence, state = recurrence_of(growing()), Growth(uses=100)

    def room(rate):
        make_room(state, torch.tensor(rate), recurrence)
        return state.room

    fading = room(0.5)
    assert fading == pytest.approx(
        LEAST_ROOM + 50
    )  # a net that fades from the start has its room from the start
    assert room(1.2) == LEAST_ROOM
    for _ in range(20):
        after = room(0.5)
    # log rate of the highest look, 100 log 1.2 = 18, less twenty times the release: still above one
    assert after == LEAST_ROOM
    opening = [room(0.5) for _ in range(4000)]
    assert all(a <= b for a, b in itertools.pairwise(opening))
    assert opening[-1] == pytest.approx(fading, rel=1e-5)

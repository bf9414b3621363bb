"""The bound on steps: uses * |D|_2 of a recurrent matrix, D its balanced step, stays below it."""

import dataclasses

import pytest
import torch
from torch import nn

from pathsgd import PathAdam, PathSGD
from pathsgd.optim import step, step_bound
from support.metrics import slow_metric

STEPS = 4  # of the recurrences of the cases
NAMES = ["rnn.weight_hh_l0", "rnn.weight_hh_l1"]


@pytest.fixture
def limited(monkeypatch):
    """An optimiser that bounds its steps by a number alone."""

    def bounded(optimizer, limit):
        monkeypatch.setattr(step_bound, "LEAST_ROOM", limit)
        optimizer.plan = dataclasses.replace(optimizer.plan, bounds_steps=True)
        optimizer._refresh.plan = optimizer.plan
        return optimizer

    return bounded


@pytest.fixture
def factors(monkeypatch):
    """The factor by which each step is shortened."""
    found, shortening = [], step_bound.shortening

    def noted(moves):
        found.append(shortening(moves))
        return found[-1]

    monkeypatch.setattr(step, "shortening", noted)
    return found


def growths(case, optimizer):
    """uses * |D|_2 of each matrix at 10 steps, from parameters before and after, and the limits."""
    grown, rooms = [], []
    for _ in range(10):
        optimizer.zero_grad()
        case.loss().backward()
        before = {name: case.model.get_parameter(name).detach().clone() for name in NAMES}
        K = slow_metric(optimizer.measure(), dict(case.model.named_parameters()), rho=1.0)
        rooms.append(
            [
                optimizer.state[p].growth.room or 1.0 if p in optimizer.state else 1.0
                for p in map(case.model.get_parameter, NAMES)
            ]
        )
        optimizer.step()
        steps = [
            (case.model.get_parameter(name).detach() - before[name]) * K[name].sqrt()
            for name in NAMES
        ]
        grown.append([STEPS * torch.linalg.matrix_norm(step, 2).item() for step in steps])
    return torch.tensor(grown), torch.tensor(rooms)


@pytest.mark.parametrize("optimiser", [PathSGD, PathAdam])
def test_recurrent_matrices_keep_within_a_bound(rnn, optimiser, limited):
    free, _ = growths(rnn, optimiser(rnn.model, 0.1, clip=None, growth=None))
    bound = float(free.max()) / 10
    bounded, _ = growths(rnn, limited(optimiser(rnn.model, 0.1, clip=None, growth=None), bound))
    # Power iteration sees a little less than all of |D|_2 in the first steps.
    assert 0.5 * bound < float(bounded.max()) < 1.15 * bound


@pytest.mark.parametrize("optimiser", [PathSGD, PathAdam])
def test_steps_keep_to_the_room_that_rates_leave(rnn, optimiser):
    grown, rooms = growths(rnn, optimiser(rnn.model, 3.0, clip=None, growth=100.0))
    assert bool((rooms[1:] > 1).any())  # states fade
    assert bool((grown < 1.15 * rooms).all())
    assert float((grown / rooms).max()) > 0.5


def test_a_bound_out_of_reach_changes_nothing(rnn, values, limited):
    twin = rnn.copy()
    rnn.train(limited(PathAdam(rnn.model, 0.01, growth=None), 1e6), 5)
    rnn.train(PathAdam(twin, 0.01, growth=None), 5, twin)
    assert torch.equal(values(twin), values(rnn.model))


def test_models_without_repeated_matrices_are_not_bounded(mlp, values, factors):
    twin = mlp.copy()
    optimizer = PathSGD(mlp.model, 0.1, growth=1e-9)
    mlp.train(optimizer, 3)
    mlp.train(PathSGD(twin, 0.1, growth=None), 3, twin)
    assert torch.equal(values(twin), values(mlp.model))
    assert not factors


def test_a_step_of_zero_does_not_end_the_bound(rnn, limited, factors):
    optimizer = limited(PathSGD(rnn.model, 0.1, growth=None), 1e-3)
    rnn.loss().backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    assert factors == [1.0]
    rnn.train(optimizer, 1)
    assert factors[1] < 1


def test_exploded_gradients_do_not_slip_through(rnn, limited, factors):
    model = rnn.model.float()
    optimizer = limited(PathSGD(model, 0.1, growth=None), 1e-3)
    (model(rnn.x.float()).square().sum() * 1e12).backward()
    for p in model.parameters():
        p.grad.mul_(1e12)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer.step()
    assert factors[0] < 1
    move = nn.utils.parameters_to_vector(model.parameters()).detach() - before
    assert 0 < move.norm() < 0.1


def test_the_sum_of_squares_serves_where_it_is_within_the_bound(rnn, monkeypatch, limited):
    """Steps are the same as with |D|_2 itself, which is not computed."""
    twin = rnn.copy()
    asked = []
    exactly = step_bound._balanced_length
    monkeypatch.setattr(step_bound, "_balanced_length", lambda *a: asked.append(a) or exactly(*a))
    optimizer = limited(PathAdam(rnn.model, 1e-4, growth=None), 10.0)
    rnn.train(optimizer, 4)
    assert not asked
    monkeypatch.setattr(step_bound, "_larger_length", lambda *_: torch.inf)
    other = limited(PathAdam(twin, 1e-4, growth=None), 10.0)
    rnn.train(other, 4, twin)
    assert asked
    for a, b in zip(rnn.model.parameters(), twin.parameters()):
        assert torch.equal(a, b)

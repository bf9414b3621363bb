"""The kernels that follow and correct directions, against torch."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from pathsgd.kernels.correct_direction import by_torch as correct_by_torch
from pathsgd.kernels.correct_direction import correct_direction
from pathsgd.kernels.follow_directions import Directions, Map, follow_directions
from pathsgd.kernels.follow_directions import by_torch as follow_by_torch
from pathsgd.kernels.native import load


@pytest.fixture
def kernel():
    if load().library is None:
        pytest.skip("no kernel")


def some_map(units: int, dtype: torch.dtype, *, leaky: bool, inside: bool) -> Map:
    generator = torch.Generator().manual_seed(units)
    weight = torch.eye(units) + torch.randn(units, units, generator=generator) / (
        4 * math.sqrt(units)
    )
    scale = torch.rand(units, generator=generator) + 0.5
    leak = torch.rand(units, generator=generator).to(dtype)
    return Map(
        weight.to(dtype),
        scale.to(dtype),
        1 - leak if leaky else 0.0,
        leak if leaky else 1.0,
        inside,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("leaky", "inside"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("units", [1, 2, 7, 8, 33, 100])
def test_kernel_and_torch_agree(kernel, units, dtype, leaky, inside):
    f = some_map(units, dtype, leaky=leaky, inside=inside)
    directions = Directions.new(f)
    for call in range(13):
        other = copy.deepcopy(directions)
        rate = follow_directions(f, directions, renewing=call % 2 == 0)
        expected = follow_by_torch(f, other, renewing=call % 2 == 0)
        tolerance = 1e-4 if dtype is torch.float32 else 1e-11
        assert float(rate) == pytest.approx(float(expected), rel=tolerance)
        assert directions.started == other.started
        for one, two in (
            (directions.rays, other.rays),
            (directions.age, other.age),
            (directions.mean, other.mean),
        ):
            assert torch.allclose(one, two, rtol=tolerance, atol=tolerance)
    assert float(rate) > 0


def test_what_was_given_is_left_as_it_is(kernel):
    f = some_map(9, torch.float32, leaky=False, inside=False)
    directions = Directions.new(f)
    rays, before = directions.rays, directions.rays.clone()
    follow_directions(f, directions)
    assert torch.equal(rays, before) and directions.rays is not rays


def test_a_matrix_that_is_a_view_is_read_as_torch_reads_it(kernel):
    f = some_map(12, torch.float64, leaky=False, inside=False)
    turned = Map(f.weight.t(), f.scale)
    directions = Directions.new(turned)
    other = copy.deepcopy(directions)
    for _ in range(6):
        rate = follow_directions(turned, directions)
        expected = follow_by_torch(turned, other, renewing=False)
    assert float(rate) == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("leaky", "inside"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("units", [1, 2, 7, 8, 33, 100])
def test_corrections_agree(kernel, units, dtype, leaky, inside):
    f = some_map(units, dtype, leaky=leaky, inside=inside)
    other = Map(f.weight.clone(), f.scale, f.keep, f.gain, f.inside)
    before = f.weight.clone()
    directions = Directions.new(f)
    for _ in range(11):
        rate = follow_directions(f, directions)
    ray, start = directions.rays[0], torch.ones(units, dtype=dtype)
    cap = 0.8 * float(rate)
    left = correct_direction(f, ray, start, rate, cap)
    expected = correct_by_torch(other, ray, start, rate, cap)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-11
    assert torch.allclose(f.weight, other.weight, rtol=tolerance, atol=tolerance)
    assert torch.allclose(left, expected, rtol=tolerance, atol=tolerance)
    assert not torch.equal(f.weight, before)
    assert torch.equal(start, torch.ones(units, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("leaky", "inside"), [(False, False), (True, False), (True, True)])
def test_corrections_of_a_direction_that_turns_agree(kernel, dtype, leaky, inside):
    f = some_map(9, dtype, leaky=leaky, inside=inside)
    f.weight.copy_(f.weight.roll(1, 0))
    other = Map(f.weight.clone(), f.scale, f.keep, f.gain, f.inside)
    ray, start, rate = f.start(3), torch.ones(9, dtype=dtype), torch.tensor(1.2, dtype=dtype)
    image, before = f(ray[None])[0], f.weight.clone()
    left = correct_direction(f, ray, start, rate, 1.0)
    assert torch.equal(left, start) and torch.equal(
        correct_by_torch(other, ray, start, rate, 1.0), start
    )
    assert torch.allclose(f.weight, other.weight, rtol=1e-5, atol=1e-6)
    assert not torch.equal(f.weight, before)
    assert float(f(ray[None])[0].norm()) < float(image.norm())


def test_a_fixed_direction_counts_at_once_and_one_that_turns_when_it_is_ripe(kernel):
    fixed, cycle = (Map(1.1 * w, torch.ones(4)) for w in (torch.eye(4), torch.eye(4).roll(1, 0)))
    for follow in (follow_directions, follow_by_torch):
        directions = Directions.new(fixed)
        assert float(follow(fixed, directions, renewing=False)) == pytest.approx(1.1)
        turning = Directions(torch.eye(4)[:2], torch.zeros(2), torch.zeros(2), torch.ones(4), 2)
        rates = [float(follow(cycle, turning, renewing=False)) for _ in range(10)]
        assert rates == [0.0] * 9 + [pytest.approx(1.1)]


def test_a_unit_that_only_decays_has_no_part_in_a_correction(kernel):
    """With keep > 0 its state never reaches 0 though its ReLU is off."""
    weight = torch.tensor([[2.0, 1.0, 0.5], [1.0, 2.0, 0.5], [-1.0, -1.0, 0.0]]).double()
    f = Map(weight, torch.ones(3, dtype=torch.float64), 0.5, 0.5)
    ray = torch.tensor([1.0, 1.0, 1e-9], dtype=torch.float64)
    start, rate = torch.ones(3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    for correct in (correct_direction, correct_by_torch):
        other = Map(weight.clone(), f.scale, f.keep, f.gain)
        left = correct(other, ray, start, rate, 1.9)
        assert torch.allclose(left[:2], left[0].expand(2))
        # (rate - keep) l_3 = gain (0.5 l_1 + 0.5 l_2)
        assert float(left[2]) == pytest.approx(float(left[0]) * 0.5 / 1.5, rel=1e-3)
        assert torch.equal(other.weight[2], weight[2])


def test_what_is_not_above_is_not_corrected(kernel):
    f = some_map(5, torch.float32, leaky=False, inside=False)
    before, ones = f.weight.clone(), torch.ones(5)
    for rate in (1.0, 0.5, math.nan, math.inf):
        assert torch.equal(correct_direction(f, ones, ones, torch.tensor(rate), 1.0), ones)
    assert torch.equal(f.weight, before)

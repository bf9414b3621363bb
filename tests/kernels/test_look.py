"""Looks with prepared calls of the kernel, against the general way."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from pathsgd.arithmetic.growth import bound_, ripe_directions
from pathsgd.kernels.follow_directions import Map
from pathsgd.kernels.look import Look
from pathsgd.kernels.native import load


@pytest.fixture(autouse=True)
def kernel():
    if load().library is None:
        pytest.skip("no kernel")


def some_map(units: int, dtype: torch.dtype, *, leaky: bool, inside: bool) -> Map:
    generator = torch.Generator().manual_seed(units)
    weight = torch.eye(units) + torch.randn(units, units, generator=generator) / (
        4 * math.sqrt(units)
    )
    leak = torch.rand(units, generator=generator).to(dtype)
    scale = (torch.rand(units, generator=generator) + 0.5).to(dtype)
    return Map(weight.to(dtype), scale, 1 - leak if leaky else 0.0, leak if leaky else 1.0, inside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("leaky", "inside"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("units", [1, 8, 33, 100])
def test_a_look_does_what_the_general_way_does(units, dtype, leaky, inside):
    f = some_map(units, dtype, leaky=leaky, inside=inside)
    other = Map(f.weight.clone(), f.scale, f.keep, f.gain, f.inside)
    directions = ripe_directions(f)
    look = Look.at(f, copy.deepcopy(directions))
    assert look is not None
    before, corrected = f.weight.clone(), 0
    for _ in range(6):
        expected = float(bound_(other, directions, 1.01))
        assert (
            look.bound(1.01) == expected
        )  # to the last bit: a resumed run starts in the general way
        corrected += expected > 1.01
        assert torch.equal(f.weight, other.weight)
        for name, found in vars(look.directions).items():
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(getattr(directions, name)))
    assert (corrected > 0) != torch.equal(before, f.weight)


def test_a_look_has_directions_of_its_own_and_serves_while_all_stays_where_it_is():
    f = some_map(9, torch.float32, leaky=False, inside=False)
    directions = ripe_directions(f)
    rays = directions.rays.clone()
    look = Look.at(f, directions)
    look.bound(9.0)
    assert torch.equal(directions.rays, rays) and not torch.equal(look.directions.rays, rays)
    own = look.directions.rays
    assert look.serves(f.weight, own)
    assert not look.serves(f.weight, rays)
    assert not look.serves(f.weight.clone(), own)
    assert not look.serves(f.weight.t(), own)
    assert not look.serves(torch._neg_view(f.weight), own)


def test_no_look_at_what_the_kernel_may_not_have():
    f = some_map(5, torch.float32, leaky=False, inside=False)
    turned = Map(f.weight.t(), f.scale)
    assert Look.at(turned, ripe_directions(turned)) is None
    half = Map(f.weight.half(), f.scale.half())
    assert Look.at(half, ripe_directions(f)) is None

"""The growth rate of ReLU recurrences, against every pattern of active units on small maps."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd.arithmetic import growth
from pathsgd.arithmetic.growth import Directions, Map
from pathsgd.kernels.correct_direction import correct_direction
from pathsgd.kernels.follow_directions import iterate
from support.device import DEVICE, counting


def plain(weight: torch.Tensor, **more) -> Map:
    return Map(weight, torch.ones(len(weight), dtype=weight.dtype), **more)


def random_weight(hidden: int, seed: int, size: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        size
        * torch.randn(hidden, hidden, generator=generator, dtype=torch.float64)
        / math.sqrt(hidden)
    )


# ---- an oracle without torch: directions that come back after up to `period` steps, from every pat


def returning_rates(W: np.ndarray, period: int) -> list[float]:
    """Growth rates of all directions that return after `period` steps of h -> relu(W h)."""
    H = len(W)
    patterns = [np.array(p) for p in itertools.product([0.0, 1.0], repeat=H)]
    found = []
    for sequence in itertools.product(patterns, repeat=period):
        product = np.eye(H)
        for active in sequence:
            product = (active[:, None] * W) @ product
        values, vectors = np.linalg.eig(product)
        for value, vector in zip(values, vectors.T):
            if abs(value.imag) > 1e-12 or value.real <= 1e-12:
                continue
            ray = vector.real * np.sign(vector.real.sum())
            h = ray
            for active in sequence:  # is this the pattern that the ReLU itself would choose?
                h = W @ h
                if ((h > 1e-12) != (active > 0)).any():
                    break
                h = np.maximum(h, 0)
            else:
                if (ray > -1e-12).all():
                    found.append(value.real ** (1 / period))
    return found


def attracted_rate(
    W: np.ndarray, leak: float = 1.0, starts: int = 200, steps: int = 2000, window: int = 600
) -> float:
    """The largest growth rate that plain simulation finds from random states."""
    random = np.random.default_rng(0)
    h = random.uniform(0, 1, (starts, len(W))) * (random.uniform(0, 1, (starts, len(W))) < 0.6)
    logs = np.zeros(starts)
    for i in range(steps):
        h = (1 - leak) * h + leak * np.maximum(h @ W.T, 0)
        size = h.sum(1)
        h = np.divide(h, size[:, None], out=np.zeros_like(h), where=size[:, None] > 0)
        if i >= steps - window:
            with np.errstate(divide="ignore"):
                logs += np.log(size)
    return float(np.exp(logs / window).max())


@pytest.mark.parametrize("seed", range(12))
def test_estimate_is_what_simulation_finds_and_the_rate_of_some_pattern(seed):
    W = random_weight(4, seed, 1.5)
    estimate = float(growth.strongest(plain(W), iterations=600)[0])
    assert estimate == pytest.approx(attracted_rate(W.numpy()), rel=1e-3, abs=1e-9)
    rates = [rate for period in (1, 2) for rate in returning_rates(W.numpy(), period)]
    if estimate > 1e-6:
        assert min(abs(rate - estimate) for rate in rates) < 2e-3 * estimate, (estimate, rates)
    assert float(growth.upper_bound(plain(W))) >= max([*rates, estimate]) * (1 - 1e-9)


def test_estimate_converges_as_iterations_grow():
    W = random_weight(12, 3, 0.3) + torch.eye(12, dtype=torch.float64)
    exact = attracted_rate(W.numpy(), steps=20_000, window=200)
    errors = [
        abs(float(growth.strongest(plain(W), iterations=n)[0]) - exact) for n in (10, 40, 160, 640)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9 < errors[0]


@pytest.mark.parametrize("share", [0.9, 0.99, 1.3, 2.0])
@pytest.mark.parametrize("kind", ["dense", "identity", "sparse", "blocks"])
def test_a_look_that_may_end_early_finds_what_grows_beyond_the_cap(kind: str, share: float) -> None:
    for seed in range(6):
        W = random_weight(16, seed)
        if kind == "identity":
            W = torch.eye(16, dtype=torch.float64) + 0.1 * W
        elif kind == "sparse":
            W = W * (torch.rand(16, 16, generator=torch.Generator().manual_seed(seed)) < 0.3)
        elif kind == "blocks":
            W = (
                torch.block_diag(*[random_weight(2, 10 * seed + k, 2.0) for k in range(8)])
                + 1e-4 * W
            )
        cap = share * attracted_rate(W.numpy())
        found = float(growth.strongest(plain(W), cap=cap)[0])
        assert (found > cap) == (share < 1), (seed, found, cap)


def test_upper_bound_falls_to_the_perron_root():
    W = random_weight(9, 5)
    root = float(torch.linalg.eigvals(W.clamp(min=0)).abs().max())
    bounds = [float(growth.upper_bound(plain(W), n)) for n in (1, 5, 25, 125, 625)]
    assert bounds == sorted(bounds, reverse=True)
    assert root * (1 - 1e-12) <= bounds[-1] == pytest.approx(root, rel=1e-9)


def test_upper_bound_of_a_cycle_and_of_separate_blocks():
    cycle = 1.5 * torch.eye(5, dtype=torch.float64).roll(1, 0)
    blocks = torch.tensor([[0.5, 3.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.0, 0.2]], dtype=torch.float64)
    assert float(growth.upper_bound(plain(cycle))) == pytest.approx(1.5)
    assert float(growth.upper_bound(plain(blocks), 3000)) == pytest.approx(0.9, rel=1e-3)


# ---- the bound -----------------------------------------------------------------------------------

JORDAN = 1.3 * torch.eye(4, dtype=torch.float64) + torch.diag(torch.ones(3, dtype=torch.float64), 1)
TURN = torch.tensor([[0.76, -0.64, 0.1], [0.64, 0.76, 0.1], [0.3, 0.2, 0.9]], dtype=torch.float64)
SOME_DEAD = random_weight(10, 1, 2.0) * (torch.arange(10) != 3)[:, None] * (torch.arange(10) != 5)
ABOVE = {
    "one unit": torch.tensor([[3.0]], dtype=torch.float64),
    "every direction": 2 * torch.eye(8, dtype=torch.float64),
    "a cycle whose supports move on": 1.5 * torch.eye(5, dtype=torch.float64).roll(1, 0),
    "a defective pair": JORDAN,
    "a complex pair": 1.4 * TURN,
    "dead units": SOME_DEAD,
    "identity and a coherent change": torch.eye(60, dtype=torch.float64)
    + 0.01
    + random_weight(60, 2, 0.1),
    "dense": random_weight(40, 4, 2.0),
    "far above": random_weight(40, 4, 6.0),
    "two separate directions": torch.block_diag(
        *[torch.full((4, 4), 0.5, dtype=torch.float64)] * 2
    ),
}


@pytest.mark.parametrize("name", ABOVE)
@pytest.mark.parametrize("leak", [1.0, 0.25])
def test_a_map_seen_for_the_first_time_is_brought_below_the_cap(name, leak):
    f = plain(ABOVE[name].clone(), keep=1 - leak, gain=leak)
    cap = 1.02
    before = float(growth.settle_(f, cap))
    assert before > cap
    assert bool(f.weight.isfinite().all())
    assert attracted_rate(f.weight.numpy(), leak) < cap * 1.01


@pytest.mark.parametrize("name", ABOVE)
def test_calls_one_after_another_bring_a_map_below_the_cap(name):
    f = plain(ABOVE[name].clone())
    directions = Directions.new(f)
    for _ in range(400):
        growth.bound_(f, directions, 1.05)
    assert bool(f.weight.isfinite().all())
    assert attracted_rate(f.weight.numpy()) < 1.05 * 1.01


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(5, 5),
        torch.zeros(1, 1),
        -torch.ones(4, 4),
        0.9 * torch.eye(6),
        torch.full((3, 3), torch.nan),
    ],
    ids=["zero", "one zero", "negative", "below the cap", "not a number"],
)
def test_what_does_not_grow_is_left_as_it_is(weight):
    f = plain(weight.double().clone())
    directions = Directions.new(f)
    for _ in range(20):
        assert not float(growth.bound_(f, directions, 1.05)) > 1.05
    assert not float(growth.settle_(f, 1.05)) > 1.05
    assert torch.equal(f.weight.nan_to_num(7.0), weight.double().nan_to_num(7.0))


def settled(f: Map) -> tuple[torch.Tensor, torch.Tensor]:
    """The rate and the direction of a map that has one, by plain iteration."""
    ray, rate = torch.ones_like(f.scale), torch.ones_like(f.scale[0])
    for _ in range(2000):
        image = f(ray[None])[0]
        rate, ray = image.norm() / ray.norm(), image / image.norm()
    return rate, ray


def far_from_normal(hidden: int = 12, seed: int = 0) -> Map:
    """A map whose fixed direction leaves some units off, in coordinates that are not its own."""
    W = random_weight(hidden, seed, 0.4) + torch.full((hidden, hidden), 0.5).triu(1)
    W = W + 0.9 * torch.eye(hidden, dtype=torch.float64)
    W[0] = -0.3
    scale = torch.logspace(-1, 1, hidden, dtype=torch.float64)
    return Map(W * scale[:, None] / scale, scale)


def in_balanced_coordinates(change: torch.Tensor, f: Map) -> torch.Tensor:
    return change * f.scale / f.scale[:, None]


def correction(f: Map, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """How one correction changes the matrix, and the left vector that it used."""
    rate, ray = settled(f)
    left = torch.ones_like(ray)
    for _ in range(40):  # each call takes the left vector some iterations further
        after = replace(f, weight=f.weight.clone())
        left = correct_direction(after, ray, left, rate, float(rate * (1 - share)))
    return after.weight - f.weight, left


LEAKY = {"plain": {}, "leaky": {"keep": 0.4, "gain": 0.6},
         "inside": {"keep": 0.4, "gain": 0.6, "inside": True}}  # fmt: skip


@pytest.mark.parametrize("form", LEAKY)
def test_a_correction_goes_along_the_gradient_of_the_rate(form):
    f = replace(far_from_normal(), **LEAKY[form])
    _, ray = settled(f)
    assert bool((ray == 0).any()) and not bool((ray == 0).all())

    weight = f.weight.clone().requires_grad_()
    state, logs = ray, []
    for _ in range(400):  # the mean growth of many iterations, differentiated through all of them
        image = replace(f, weight=weight)(state[None])[0]
        logs.append(image.norm().log())
        state = image / image.norm()
    (gradient,) = torch.autograd.grad(torch.stack(logs[200:]).mean().exp(), weight)

    change, left = correction(f, 1e-3)
    gain = f.gain if isinstance(f.gain, float) else 1.0
    outer = torch.outer(left * f.scale.reciprocal() * (ray > 0), ray * f.scale)
    assert torch.allclose(gradient, gain * outer / (left @ ray), rtol=1e-6, atol=1e-9)
    for i, j in ((3, 5), (7, 2), (11, 11)):
        ends = []
        for step in (1e-6, -1e-6):
            moved = f.weight.clone()
            moved[i, j] += step
            ends.append(float(settled(replace(f, weight=moved))[0]))
        assert float(gradient[i, j]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)
    # smallest in balanced coordinates: along the gradient there
    along = gradient / f.scale * f.scale[:, None]
    balanced = in_balanced_coordinates(change, f)
    cosine = (balanced * along).sum() / balanced.norm() / along.norm()
    assert float(cosine) == pytest.approx(-1, abs=1e-9)


@pytest.mark.parametrize("form", LEAKY)
def test_a_correction_takes_the_rate_to_the_cap_to_first_order(form):
    f = replace(far_from_normal(), **LEAKY[form])
    rate = float(settled(f)[0])
    misses = []
    for share in (0.02, 0.01, 0.005):
        change, _ = correction(f, share)
        after = float(settled(replace(f, weight=f.weight + change))[0])
        misses.append(abs(after - rate * (1 - share)))
    assert misses[1] < 0.3 * misses[0] and misses[2] < 0.3 * misses[1] < 1e-3 * rate


def test_a_correction_is_shorter_than_moving_one_eigenvalue_alone():
    f = far_from_normal()
    rate, ray = settled(f)
    change, left = correction(f, 1e-3)
    cosine = float(left @ ray / left.norm() / ray.norm())
    alone = 1e-3 * rate * torch.outer(ray, left) / (left @ ray)  # keeps all other eigenvalues
    short = in_balanced_coordinates(change, f)
    assert float(short.norm()) == pytest.approx(1e-3 * float(rate) * cosine, rel=1e-6)
    assert float(alone.norm() / short.norm()) == pytest.approx(cosine**-2, rel=1e-6)
    assert cosine < 0.5


@pytest.mark.parametrize("period", [2, 3])
def test_a_cycle_has_its_image_made_smaller(period):
    cycle = torch.zeros(period, period, dtype=torch.float64)
    for unit in range(period):
        cycle[(unit + 1) % period, unit] = 1.1 + 0.1 * unit
    f = plain(torch.block_diag(cycle, random_weight(6, 1, 0.5)))
    rate = attracted_rate(f.weight.numpy())
    ray = torch.zeros(period + 6, dtype=torch.float64)
    ray[0] = 1.0
    image, start = f(ray[None])[0], torch.ones_like(ray)
    left = correct_direction(f, ray, start, torch.tensor(rate, dtype=torch.float64), 1.05)
    assert torch.equal(left, start), "no left vector"
    assert torch.allclose(f(ray[None])[0], 1.05 / rate * image)
    directions = Directions.new(f)
    for _ in range(60):
        growth.bound_(f, directions, 1.05)
    assert attracted_rate(f.weight.numpy()) < 1.05 * 1.001


def test_looks_find_a_direction_that_one_state_in_sixteen_leads_to():
    groups, units = 16, 4  # each group silences the others; one grows
    excite = torch.block_diag(*[torch.full((units, units), 1.01 / units)] * groups).double()
    excite[:units, :units] *= 1.04 / 1.01
    W = excite - 0.1 / units * (1 - torch.block_diag(*[torch.ones(units, units)] * groups))
    states = torch.rand(2000, groups * units, generator=torch.Generator().manual_seed(0)).double()
    for _ in range(300):
        states = (states @ W.t()).clamp(min=0)
        states = states / states.sum(1, keepdim=True).clamp(min=1e-300)
    share = float((states[:, :units].sum(1) > 0.5).double().mean())
    assert 1 / 40 < share < 1 / 8, share
    f = plain(W.clone())
    directions = Directions.new(f)
    rates = [float(growth.bound_(f, directions, 1.02)) for _ in range(80)]
    assert max(rates) == pytest.approx(1.04, rel=1e-3)
    assert float(growth.strongest(f, starts=512)[0]) < 1.02 * 1.001


def test_many_units():
    generator = torch.Generator().manual_seed(0)
    f = plain(2 * torch.randn(2048, 2048, generator=generator) / math.sqrt(2048))
    directions = Directions.new(f)
    rates = [float(growth.bound_(f, directions, 1.05)) for _ in range(20)]
    assert rates[:9] == [0.0] * 9  # not ripe
    assert rates[9] > 1.3 > rates[-1]
    assert bool(f.weight.isfinite().all())


# ---- rescaling -----------------------------------------------------------------------------------


def pushed_and_bounded(weight, scale, factors, noise, calls, cap=1.02):
    """A matrix under pushes, bounded after each one; `factors` is the rescaling of the units."""
    generator = torch.Generator().manual_seed(5)
    f = Map(weight * factors[:, None] / factors, scale * factors)
    directions = Directions.new(f)
    rates = []
    for _ in range(calls):
        push = 0.002 + noise * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        f.weight.add_(push.to(weight) * factors[:, None] / factors)
        rates.append(float(growth.bound_(f, directions, cap)))
    return f.weight / factors[:, None] * factors, rates


def twins(hidden, seed, dtype, factors, noise, calls):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.eye(hidden, dtype=dtype)
    scale = (0.5 + torch.rand(hidden, generator=generator, dtype=torch.float64)).to(dtype)
    one = pushed_and_bounded(weight, scale, torch.ones_like(scale), noise, calls)
    two = pushed_and_bounded(weight, scale, factors.to(dtype), noise, calls)
    assert max(one[1]) > 1.0  # else nothing was found
    return one, two


@settings(max_examples=10)
@given(
    hidden=st.integers(2, 30),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_bound_commutes_with_rescaling_by_powers_of_two_to_the_last_bit(hidden, seed, dtype):
    factors = 2.0 ** torch.randint(-7, 8, (hidden,), generator=torch.Generator().manual_seed(seed))
    (one, rates), (two, others) = twins(hidden, seed, dtype, factors, noise=0.01, calls=30)
    assert rates == others
    assert torch.equal(one, two)


@settings(max_examples=10)
@given(hidden=st.integers(2, 30), seed=st.integers(0, 99))
def test_every_call_commutes_with_rescaling(hidden, seed):
    """Each call starts from the same state: rounding of one call is amplified by later ones."""
    generator = torch.Generator().manual_seed(seed)
    factors = 10 ** (4 * torch.rand(hidden, generator=generator, dtype=torch.float64) - 2)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        by = factors.to(dtype)
        scale = (0.5 + torch.rand(hidden, generator=generator, dtype=torch.float64)).to(dtype)
        f, rates = Map(torch.eye(hidden, dtype=dtype), scale), []
        directions = Directions.new(f)
        for _ in range(25):
            noise = torch.randn(hidden, hidden, generator=generator, dtype=torch.float64)
            f.weight.add_((0.002 + 0.0005 * noise).to(dtype))
            twin, others = Map(f.weight * by[:, None] / by, scale * by), copy.deepcopy(directions)
            rates.append(float(growth.bound_(f, directions, 1.02)))
            assert float(growth.bound_(twin, others, 1.02)) == pytest.approx(
                rates[-1], rel=tolerance
            )
            back = twin.weight / by[:, None] * by
            assert torch.allclose(back, f.weight, atol=tolerance, rtol=tolerance)
        assert max(rates) > 1.0


def test_scale_comes_from_the_whitening_and_follows_units():
    whitening = torch.rand(7, 7, dtype=torch.float64) + 0.1
    factors = torch.logspace(-2, 2, 7, dtype=torch.float64)
    scale = growth.scale_of(whitening, whitening)
    other = growth.scale_of(whitening * factors[:, None] / factors, whitening)
    ratio = other / scale / factors
    assert torch.allclose(ratio, ratio[0].expand(7), rtol=1e-12)
    twos = torch.tensor([8.0, 1.0, 0.125, 2.0, 512.0, 1.0, 0.5], dtype=torch.float64)
    other = growth.scale_of(whitening * twos[:, None] / twos, whitening)
    assert torch.equal(other / other[1], scale / scale[1] * twos), (
        "and by powers of two in every bit"
    )


def test_a_matrix_on_no_path_is_balanced_by_itself():
    weight, nothing = random_weight(7, 3), torch.zeros(7, 7, dtype=torch.float64)
    factors = torch.logspace(-2, 2, 7, dtype=torch.float64)
    scale = growth.scale_of(nothing, weight)
    other = growth.scale_of(nothing, weight * factors[:, None] / factors)
    ratio = other / scale / factors
    assert torch.allclose(ratio, ratio[0].expand(7), rtol=1e-10)
    assert torch.equal(growth.scale_of(nothing, torch.eye(7)), torch.ones(7))


# ---- elsewhere than on the CPU -------------------------------------------------------------------


def test_on_a_device_a_look_and_its_correction_do_not_make_the_host_wait():
    here = plain(torch.eye(12) + 0.02)
    there = Map(here.weight.to(DEVICE), here.scale.to(DEVICE))
    directions, others = growth.ripe_directions(here), growth.ripe_directions(there)
    with counting() as counts:
        rate = growth.bound_(there, others, 1.05)
    assert counts.syncs == 0, counts.waits
    assert float(rate) == pytest.approx(float(growth.bound_(here, directions, 1.05)), rel=1e-5)
    assert float(rate) > 1.05
    assert torch.allclose(there.weight.cpu(), here.weight, atol=1e-4)


@given(
    hidden=st.integers(1, 9),
    seed=st.integers(0, 2**20),
    form=st.sampled_from(
        [(0.0, 1.0, False), (0.3, 0.7, False), (0.3, 0.7, True), (0.0, 1.0, True)]
    ),
)
def test_scales_taken_into_the_matrix_change_nothing(
    hidden: int, seed: int, form: tuple[float, float, bool]
) -> None:
    torch.manual_seed(seed)
    keep, gain, inside = form
    scale = (2 * torch.randn(hidden, dtype=torch.float64)).exp()
    f = Map(random_weight(hidden, seed, 2.0), scale, keep, gain, inside)
    rays = torch.stack([f.start(number) for number in range(5)])
    for found, wanted in zip(growth.iterated(f, rays, 6), iterate(f, rays, 6)):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)

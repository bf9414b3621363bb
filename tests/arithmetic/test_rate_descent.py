"""Growth-rate descent under any parametrisation: finite differences and the closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pathsgd.arithmetic.rate_descent import (
    Direction,
    Parameters,
    find_direction,
    lowered,
    rate_gradient,
)
from pathsgd.kernels.correct_direction import correct_direction
from pathsgd.kernels.follow_directions import Map

UNITS = 9


def draw(*shape: int, seed: int = 0, low: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (1 - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


@dataclass
class Case:
    """A map with a fixed direction: its parameters, one turn, and the state's shape."""

    parameters: dict[str, Tensor]
    turn: Callable[[dict[str, Tensor], Tensor], Tensor]
    shape: tuple[int, ...] = (UNITS,)

    def found(self, parameters: Parameters | None = None, iterations: int = 800) -> Direction:
        given = self.parameters if parameters is None else parameters
        return find_direction(
            self.turn, given, draw(*self.shape, seed=5, low=0.5), iterations=iterations
        )


SOME = draw(UNITS, UNITS, low=-0.5) / 3 + 0.5 * torch.eye(UNITS, dtype=torch.float64)
SIGN = torch.where(torch.arange(UNITS) < 7, 1.0, -1.0).double()
MASK = draw(UNITS, UNITS, seed=2) < 0.7


def signs() -> Tensor:
    return torch.where(torch.eye(UNITS, dtype=torch.bool), 1.0, SIGN)


def leaky(theta: dict[str, Tensor], h: Tensor) -> Tensor:
    a = theta["leak"].sigmoid()
    return (1 - a) * h + a * (theta["W"] @ h).relu()


def two_matrices(theta: dict[str, Tensor], h: Tensor) -> Tensor:
    return (theta["B"] @ (theta["A"] @ h).relu()).relu()


def convolution(theta: dict[str, Tensor], h: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(h[None], theta["kernel"], padding=1)[0].relu()


CASES = {
    "plain": Case({"W": SOME}, lambda p, h: (p["W"] @ h).relu()),
    "masked": Case({"W": 1.3 * SOME}, lambda p, h: ((p["W"] * MASK) @ h).relu()),
    "signs of Dale's law": Case(
        {"V": draw(UNITS, UNITS, seed=3) * torch.where(SIGN > 0, 1.0, 0.2)},
        lambda p, h: ((p["V"].abs() * signs()) @ h).relu(),
    ),
    "low rank": Case(
        {"A": draw(UNITS, 2, seed=1, low=-0.3), "B": draw(2, UNITS, seed=4, low=-0.3)},
        lambda p, h: (p["A"] @ (p["B"] @ h)).relu(),
    ),
    "a leak that is learnt": Case({"W": SOME, "leak": draw(UNITS, seed=6, low=-1.0)}, leaky),
    "two matrices": Case(
        {"A": draw(7, UNITS, seed=7, low=-0.4), "B": draw(UNITS, 7, seed=8, low=-0.4)}, two_matrices
    ),
    "convolution": Case({"kernel": draw(3, 3, 3, 3, seed=9, low=-0.4)}, convolution, (3, 5, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_finite_differences(name):
    case = CASES[name]
    found = case.found()
    assert bool(found.is_fixed) and int((found.ray > 1e-6).sum()) > 3
    gradient = rate_gradient(case.turn, case.parameters, found)
    for key, value in case.parameters.items():
        direction = draw(*value.shape, seed=11, low=-1.0)
        ends = [
            case.found({**case.parameters, key: value + step * direction}).rate
            for step in (1e-5, -1e-5)
        ]
        slope = float((gradient[key] * direction).sum())
        assert slope == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_a_step_takes_the_rate_to_the_cap_to_first_order(name):
    case = CASES[name]
    found, misses = case.found(), []
    whitening = {key: draw(*p.shape, seed=12, low=0.2) for key, p in case.parameters.items()}
    for share in (0.02, 0.01, 0.005):
        cap = float(found.rate) * (1 - share)
        after = lowered(case.turn, case.parameters, found, cap, whitening)
        misses.append(abs(float(case.found(after).rate) - cap))
    assert misses[1] < 0.3 * misses[0] and misses[2] < 0.3 * misses[1] < 1e-2 * float(found.rate)


@pytest.mark.parametrize("name", CASES)
def test_no_other_step_of_the_same_effect_is_shorter(name):
    case = CASES[name]
    found = case.found()
    whitening = {key: draw(*p.shape, seed=12, low=0.2) for key, p in case.parameters.items()}
    gradient = rate_gradient(case.turn, case.parameters, found)
    after = lowered(case.turn, case.parameters, found, 0.99 * float(found.rate), whitening)
    steps = {key: after[key] - p for key, p in case.parameters.items()}

    def effect(change: dict[str, Tensor]) -> Tensor:
        return torch.stack([(gradient[key] * d).sum() for key, d in change.items()]).sum()

    def length(change: dict[str, Tensor]) -> Tensor:
        squares = [(d / whitening[key]).square().sum() for key, d in change.items()]
        return torch.stack(squares).sum().sqrt()

    assert float(effect(steps)) == pytest.approx(-0.01 * float(found.rate), rel=1e-6)
    for seed in range(5):
        other = {key: d + 0.1 * d.abs().mean() * draw(*d.shape, seed=seed, low=-1.0) for key,
                 d in steps.items()}  # fmt: skip
        share = effect(steps) / effect(other)
        assert length(steps) < length({key: share * d for key, d in other.items()})


def test_what_a_parametrisation_does_not_use_stays():
    case = CASES["masked"]
    found = case.found()
    after = lowered(case.turn, case.parameters, found, 0.9 * float(found.rate), {"W": 1.0})
    assert torch.equal(after["W"][~MASK], case.parameters["W"][~MASK])
    assert not torch.equal(after["W"], case.parameters["W"])


def test_what_has_no_whitening_stays():
    case = CASES["a leak that is learnt"]
    found = case.found()
    cap = 0.9 * float(found.rate)
    after = lowered(case.turn, case.parameters, found, cap, {"W": 1.0, "leak": 0.0})
    assert torch.equal(after["leak"], case.parameters["leak"])


def test_below_the_cap_nothing_moves():
    case = CASES["plain"]
    found = case.found()
    after = lowered(case.turn, case.parameters, found, 1.01 * float(found.rate), {"W": 1.0})
    assert torch.equal(after["W"], case.parameters["W"])


@pytest.mark.parametrize("form", ["plain", "leaky", "inside", "cycle"])
def test_for_one_matrix_in_balanced_coordinates_it_is_the_closed_form(form):
    scale = torch.logspace(-1, 1, UNITS, dtype=torch.float64)
    balanced = 1.5 * torch.eye(UNITS, dtype=torch.float64).roll(1, 0) if form == "cycle" else SOME
    leak = {"keep": 0.3, "gain": 0.7} if form in ("leaky", "inside") else {}
    f = Map(balanced * scale[:, None] / scale, scale, **leak, inside=form == "inside")

    def turn(theta: dict[str, Tensor], h: Tensor) -> Tensor:
        if form == "inside":
            return (f.keep * h + f.gain * (theta["W"] @ h)).relu()
        return f.keep * h + f.gain * (theta["W"] @ h).relu()

    start = scale * draw(UNITS, seed=5, low=0.5)
    found = find_direction(turn, {"W": f.weight}, start, scale=scale, iterations=301)
    assert bool(found.is_fixed) != (form == "cycle")
    cap = 0.97 * float(found.rate)
    whitening = {"W": scale[:, None] / scale}
    after = lowered(turn, {"W": f.weight}, found, cap, whitening)["W"]
    left = found.left.clone()
    correct_direction(f, found.ray, left, found.rate, cap)
    assert torch.allclose(after, f.weight, rtol=1e-9, atol=1e-12)


def test_a_cycle_has_its_image_made_shorter():
    cycle = torch.diag(torch.tensor([1.1, 1.3, 1.2], dtype=torch.float64)).roll(1, 0)
    case = Case({"W": cycle}, lambda p, h: (p["W"] @ h).relu(), (3,))
    found = case.found(iterations=300)
    assert not bool(found.is_fixed)
    share = 0.95
    after = lowered(case.turn, case.parameters, found, share * float(found.rate), {"W": 1.0})
    image = case.turn(after, found.ray)
    assert float(image.norm()) == pytest.approx(share * float(found.image.norm()))


def test_a_rescaled_twin_takes_the_rescaled_step():
    case = CASES["plain"]
    factors = 2.0 ** torch.arange(UNITS, dtype=torch.float64)
    twin = case.parameters["W"] * factors[:, None] / factors
    start = draw(UNITS, seed=5, low=0.5)
    found = find_direction(case.turn, case.parameters, start)
    other = find_direction(case.turn, {"W": twin}, start * factors, scale=factors)
    assert torch.equal(found.rate, other.rate)
    cap = 0.9 * float(found.rate)
    after = lowered(case.turn, case.parameters, found, cap, {"W": 1.0})["W"]
    whitening = {"W": factors[:, None] / factors}
    twins = lowered(case.turn, {"W": twin}, other, cap, whitening)["W"]
    assert torch.equal(twins, after * factors[:, None] / factors)

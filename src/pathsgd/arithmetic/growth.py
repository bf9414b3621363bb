"""The growth rate of a ReLU recurrence: how fast a state can grow when nothing enters any more.

    F(h) = keep * h + gain * relu(W h)        keep = 0, gain = 1: a plain RNN;  1 - a, a: a leaky one (CTRNN)
    rate = sup over h >= 0 of limsup |F^n(h)|^(1/n)

F is positively homogeneous, so only directions matter, and |.| may be any length. A rescaling of units turns W into
D W D^-1 and F into D F D^-1: the rate does not change. Facts used below:

- Upper bound. F(h) <= (keep + gain max(W, 0)) h =: P h, entry by entry, and P >= 0 is monotone: rate <= Perron root
  of P, for every pattern of active units. For every x > 0 the root is at most max_i (P x)_i / x_i (Collatz-Wielandt),
  so each iterate gives a valid bound; iterating P + root instead of P makes it converge for cyclic P too.
- What is attained. The supremum is that of the mean log growth over the invariant measures of the directions (the
  growth in n steps is submultiplicative, directions are compact). The simplest are fixed directions: r >= 0 with
  F(r) = rate * r. With S the units active there, r_S is an eigenvector of W_SS, and W r <= 0 outside S. Then come
  cycles and wandering directions, whose supports change from step to step; complex leading pairs give these.
- What iteration finds. F^n(h) converges to directions that attract. One that repels is left at once and makes no
  signal grow for long. No single start finds all that attract, because they have basins: hence several starts.
- What it says too early. Before it has converged, F^n(h) may grow faster than the rate (W is not normal), and a
  correction of such a direction damages the net for nothing. So a start counts after `RIPE` iterations, and the rate
  of a direction is the lower of its growth now and its mean growth over the last `MEMORY` iterations or so.

The correction, with l the left vector of W_SS (zero outside S) and l . r > 0:

    W <- W - (1 - cap / rate) / (l . r) * F(r) / gain * l^T          for a fixed direction, F(r) = rate * r

turns the image of r into cap / rate of it, so this one rate becomes the cap, and the other eigenvalues of W_SS stay.
Where l is far from r, |l| |r| > `CONDITION` (l . r) (a nearly defective pair, or a cycle, which has no l), r takes its
place: the smallest change that does the same to the image of r. What remains (another direction, the next member of a
cycle) is the next call's.

All of this is done in coordinates h / scale, where `scale` turns into D scale when units are rescaled (`scale_of`). In
them two rescaled twins are the same map: whatever is computed here is invariant, and W moves covariantly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STARTS = 6
"""Directions that are followed at a time."""
ITERATIONS = 8
"""Of each in one call."""
SETTLE = 16
"""Iterations of a start whose growth is not looked at."""
RIPE = 40
"""Iterations after which a start counts."""
MEMORY = 40
"""Iterations over which the growth of a direction is averaged."""
ROUNDS = 2
"""Corrections in one call, at most."""
CORRECTIONS = 8
"""Corrections of a map that is seen for the first time, at most."""
CONDITION = 30.0
"""Largest |l| |r| / (l . r) at which a left vector is used."""


@dataclass(frozen=True)
class Map:
    """One recurrent map h -> keep * h + gain * relu(W h). Rays are states in balanced coordinates, h / scale.

    weight: (H, H); scale: (H,), positive; keep, gain: numbers, or one for each unit (H,).
    """

    weight: Tensor
    scale: Tensor
    keep: Tensor | float = 0.0
    gain: Tensor | float = 1.0

    def __call__(self, rays: Tensor) -> Tensor:
        """F of every row of `rays` (K, H)."""
        return self.keep * rays + self.gain * ((rays * self.scale) @ self.weight.t()).clamp(min=0) / self.scale

    def back(self, left: Tensor) -> Tensor:
        """The transposed map, without its ReLU, of a covector (H,)."""
        return self.keep * left + ((self.gain * left / self.scale) @ self.weight) * self.scale

    def start(self, number: int) -> Tensor:
        """A ray with about half of its units, others for every number."""
        n = torch.arange(1, len(self.scale) + 1, device=self.scale.device)
        mixed = n * (2 * number + 1) % 2147483648 * 2654435761
        chosen = (mixed >> 20) % 2 == 1
        chosen = chosen | ~chosen.any()
        return chosen.to(self.scale.dtype) / chosen.sum()


@dataclass
class Directions:
    """Directions that are followed from call to call, those that grow most first.

    rays: (K, H); age: (K,), iterations since each was started; mean: (K,), of their log growth; left: (H,), where l
    starts from; started: how many there have been.
    """

    rays: Tensor
    age: Tensor
    mean: Tensor
    left: Tensor
    started: int

    @staticmethod
    def new(f: Map, count: int = STARTS) -> Directions:
        rays = torch.stack([f.start(number) for number in range(count)])
        zero = torch.zeros_like(rays[:, 0])
        return Directions(rays, zero, zero, torch.ones_like(f.scale), count)


def scale_of(whitening: Tensor) -> Tensor:
    """The scale of a recurrent map from the whitening 1/sqrt(K) of its matrix, (H,).

    Rescaling multiplies entry i, j of 1/sqrt(K) by alpha_i / alpha_j, so the mean logarithm of row i less that of
    column i grows by 2 log alpha_i, up to a constant. Entries on no path are left out.
    """
    used = whitening > 0
    logs = torch.where(used, whitening, 1.0).log()
    row, column = (logs.sum(d) / used.sum(d).clamp(min=1) for d in (1, 0))
    half = (row - column) / 2
    return (half - half.mean()).exp()


def iterate(f: Map, rays: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The rays (K, H) after so many iterations, each of sum 1, and their log growth in every one (iterations, K)."""
    logs = []
    for _ in range(iterations):
        image = f(rays)
        length = _positive(image.sum(1))
        logs.append(length.log())
        rays = image / length[:, None]
    return rays, torch.stack(logs)


def follow(f: Map, directions: Directions) -> Tensor:
    """Iterate every direction, order them by growth, and give the largest growth rate, 0-d; 0 if none is ripe.

    The rate of a direction is the lower of its growth in the last half of the iterations and of its mean over
    `MEMORY`. A direction that has ended at zero is started anew.
    """
    rays, logs = iterate(f, directions.rays, ITERATIONS)
    alive = (rays > 0).any(1)
    age = torch.where(alive, directions.age + ITERATIONS, 0.0)
    ripe = age >= RIPE
    weight = ITERATIONS / (age - SETTLE).clamp(ITERATIONS, MEMORY)
    mean = torch.where(alive, directions.mean + weight * (logs.mean(0) - directions.mean), 0.0)
    rates = torch.where(ripe, torch.minimum(mean, logs[ITERATIONS // 2 :].mean(0)).exp(), 0.0)
    order = torch.where(ripe, rates, age - 2 * RIPE).argsort(descending=True)
    directions.rays = torch.where(alive[:, None], rays, f.start(directions.started))[order]
    directions.age, directions.mean = age[order], mean[order]
    directions.started += 1
    return rates[order[0]]


def renew(f: Map, directions: Directions) -> None:
    """Start the slowest of the ripe directions anew if half of all are ripe, so that new ones are always looked at."""
    ripe = directions.age >= RIPE
    last = ripe.sum() - 1
    slowest = (torch.arange(len(ripe), device=ripe.device) == last) & (2 * last >= len(ripe))
    directions.rays = torch.where(slowest[:, None], f.start(directions.started), directions.rays)
    directions.age = torch.where(slowest, 0.0, directions.age)
    directions.started += 1


def left_vector(f: Map, ray: Tensor, start: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """l of a direction, zero outside its support, with l . r > 0; r itself where there is none near enough."""
    support = ray > 0
    left = torch.where(support, start, 0.0)
    for _ in range(iterations):
        left = torch.where(support, f.back(left), 0.0)
        left = left / _positive(left.norm())
    left = left * torch.where(left @ ray < 0, -1.0, 1.0)
    near = CONDITION * (left @ ray) >= left.norm() * ray.norm()
    return torch.where(near & (left @ ray > 0), left, ray)


def correct_(f: Map, ray: Tensor, start: Tensor, rate: Tensor, cap: float) -> Tensor:
    """Bring the rate of one direction down to `cap`, in place; nothing where it is not above. Returns its l."""
    left = left_vector(f, ray, start)
    above = (rate > cap) & rate.isfinite()
    factor = torch.where(above, (1 - cap / rate) / (left @ ray), 0.0)
    image = torch.where(above, f(ray[None])[0] / f.gain, 0.0) * f.scale
    f.weight.sub_(torch.outer(factor * image, left / f.scale))
    return torch.where(above, left, start)


def bound_(f: Map, directions: Directions, cap: float) -> Tensor:
    """Look, and correct what is found above `cap`, in place; returns the rate found, 0-d.

    One look more follows a correction: a step that makes two directions grow would else keep one of them.
    """
    renew(f, directions)
    first = rate = follow(f, directions)
    for again in range(ROUNDS):
        if rate.device.type == "cpu" and not bool(rate > cap):  # elsewhere the question would make the host wait
            break
        directions.left = correct_(f, directions.rays[0], directions.left, rate, cap)
        fall = torch.where(rate > cap, (rate / cap).log(), 0.0)
        directions.mean = torch.cat([directions.mean[:1] - fall, directions.mean[1:]])
        if again < ROUNDS - 1:
            rate = follow(f, directions)
    return first


def settle_(f: Map, cap: float, tolerance: float = 1e-6) -> Tensor:
    """Bring the rate of a map of which nothing is known down to `cap`, in place; returns the rate found, 0-d.

    Direction by direction; where more than `CORRECTIONS` of them are above the cap, all of W is made smaller instead.
    """
    first = rate = ray = None
    for attempt in range(2 * CORRECTIONS):
        rate, ray = strongest(f)
        first = rate if first is None else first
        if not bool(rate > cap * (1 + tolerance)):
            break
        if attempt < CORRECTIONS:
            correct_(f, ray, torch.ones_like(ray), rate, cap)
        else:
            keep = f.keep if isinstance(f.keep, float) else float(f.keep.amax())
            f.weight.mul_((cap - keep) / (rate - keep))
    assert first is not None
    return first


def strongest(f: Map, starts: int = 64, iterations: int = 240) -> tuple[Tensor, Tensor]:
    """The largest growth rate found from many starts, 0-d, and the direction that has it (H,).

    The growth is the mean over the second half of the iterations. It is the rate if one of the starts finds the
    direction and has converged.
    """
    rays = torch.stack([f.start(number) for number in range(starts)])
    rays, _ = iterate(f, rays, iterations - iterations // 2)
    rays, logs = iterate(f, rays, iterations // 2)
    rates = torch.where((rays > 0).any(1), logs.mean(0).exp(), 0.0)
    best = rates.argmax()
    return rates[best], rays[best]


def upper_bound(f: Map, iterations: int = 100) -> Tensor:
    """A bound on the rate, up to rounding: on the Perron root of keep + gain max(W, 0). It falls with iterations."""
    positive = Map(f.weight.clamp(min=0), f.scale, f.keep, f.gain)
    x = torch.ones_like(f.scale)
    least = torch.full_like(x[0], torch.inf)
    for _ in range(iterations):
        y = positive(x[None])[0]
        bound = (y / x).amax()
        least = torch.minimum(least, bound)
        x = _positive((y / _positive(bound) + x) / 2)
    return least


def _positive(x: Tensor) -> Tensor:
    return x.clamp(min=torch.finfo(x.dtype).tiny)

"""Growth rate of a ReLU recurrence: how fast a state can grow without inputs.

    F(h) = keep * h + gain * relu(W h)        plain RNN: keep = 0, gain = 1; leaky (CTRNN): 1 - a, a
    rate = sup over h >= 0 of limsup |F^n(h)|^(1/n)

F is positively homogeneous, so only directions matter, and |.| may be any norm. Rescaling units
turns W into D W D^-1 and F into D F D^-1; the rate does not change. The code uses these facts:

- Upper bound. F(h) <= (keep + gain max(W, 0)) h =: P h entrywise, and P >= 0 is monotone. So
  rate <= Perron root of P, whichever units are active. For every x > 0 the root is at most
  max_i (P x)_i / x_i (Collatz-Wielandt), so each iterate gives a valid bound. Iterating P + root
  instead of P converges for cyclic P too.
- Where the supremum is attained. It is the supremum of the mean log growth over the invariant
  measures on directions (growth in n steps is submultiplicative, directions are compact). The
  simplest case is a fixed direction: r >= 0 with F(r) = rate * r. If S is the set of units active
  there, r_S is an eigenvector of W_SS, and W r <= 0 outside S. Other cases are cycles and wandering
  directions, whose supports change from step to step; complex leading pairs cause these.
- What power iteration finds. F^n(h) converges to attracting directions. It leaves a repelling
  direction at once, so such a direction makes no signal grow for long. Attracting directions have
  basins, so no single start finds all of them: several starts are used.
- Transients. Before convergence F^n(h) may grow faster than the rate (W is not normal). So a start
  counts once it is fixed or after `RIPE` iterations. While it still turns, its rate is the lower of
  its current growth and its mean growth over about the last `MEMORY` iterations.

The correction. A fixed direction with left vector l, where l^T J = rate * l^T for the Jacobian J of
F at r, has the gradient

    d rate / d W = a r^T / (l . r),    a = gain * l at active units, 0 elsewhere

so the smallest change of W that lowers the rate to the cap, to first order, is with c = l

    W <- W - (1 - cap / rate) * (c . F(r)) / (|a|^2 |r|^2) * a r^T

For a plain map its norm is cos(l, r) (rate - cap). Moving this eigenvalue and keeping all others
would take a change 1 / cos^2 times as large; where W is far from normal, that destroys what was
learnt. The correction is exact to first order only, so it is repeated until the rate is at the cap.
There is no usable l where the direction turns (|F(r) / |F(r)| - r / |r|| >= `FIXED`: a cycle, or a
changing support) or where cos(l, F(r)) <= `NORMAL`. Then c = F(r): the smallest change that
shortens the image of r. The next look handles what is left (another direction, the next member of a
cycle). arithmetic/rate_descent.py does the same for any parameters in any metric.

All computations use the coordinates h / scale, where `scale` becomes D scale when units are
rescaled (`scale_of`). In these coordinates two rescaled twins are the same map: all results are
invariant, and W moves covariantly.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pathsgd.kernels.correct_direction import LOOKS, correct_direction
from pathsgd.kernels.follow_directions import (
    ITERATIONS,
    RIPE,
    Directions,
    Map,
    follow_directions,
    positive,
)

__all__ = [
    "Directions",
    "Map",
    "bound_",
    "ripe_directions",
    "scale_of",
    "settle_",
    "strongest",
    "upper_bound",
]

CORRECTIONS = 8
"""Corrections of a map that is seen for the first time, at most."""
GAIN = 1e4
"""By how much a direction must have outgrown the others for a look to rely on seeing it."""
_CHECKED = (24, 48, 96, 160)  # iterations after which a look may end


def scale_of(whitening: Tensor, weight: Tensor) -> Tensor:
    """The scale of a recurrent map from the whitening 1/sqrt(K) of its matrix, (H,).

    Rescaling multiplies entry i, j of 1/sqrt(K) by alpha_i / alpha_j. So the mean logarithm of
    row i minus that of column i grows by 2 log alpha_i, up to a constant. Entries on no path are
    left out; a matrix on no path at all is balanced by its own entries.

    The scale's logarithms to base 2 are rounded to 2^-30 (float64: 2^-44), and the first unit has
    scale 1. With power-of-two factors, rescaled twins are therefore bitwise the same map.
    """
    used = whitening > 0
    if not bool(used.any()):
        return _balancing_scale(weight)
    logs = torch.where(used, whitening, 1.0).double().log2()
    row, column = (logs.sum(d) / used.sum(d).clamp(min=1) for d in (1, 0))
    half = (row - column) / 2
    grid = 2**44 if weight.dtype is torch.float64 else 2**30
    half = (half - half[0]).mul(grid).round() / grid
    return ((half - half.floor()).exp2() * half.floor().exp2()).to(weight.dtype)


def _balancing_scale(weight: Tensor, iterations: int = 1000) -> Tensor:
    """The scale that gives each unit equal incoming and outgoing weights (Osborne 1960)."""
    squares = weight.double().square().fill_diagonal_(0.0)
    logs = torch.zeros_like(squares[0])
    for _ in range(iterations):
        balanced = squares * (2 * (logs - logs[:, None])).exp()
        into, out = balanced.sum(1), balanced.sum(0)
        step = torch.where((into > 0) & (out > 0), (into / out).log() / 8, 0.0)
        logs = logs + step
        if float(step.abs().amax()) < 1e-13:
            break
    return (logs - logs.mean()).exp().to(weight.dtype)


def ripe_directions(f: Map) -> Directions:
    """Directions that count already at the next look."""
    directions = Directions.new(f)
    for _ in range(RIPE // ITERATIONS):
        follow_directions(f, directions)
    return directions


def bound_(f: Map, directions: Directions, cap: float) -> Tensor:
    """Correct the fastest direction in place while its rate is above `cap`; returns the first rate.

    At most `LOOKS` times; on a device once, because testing the rate would synchronise it.
    """
    first = rate = follow_directions(f, directions, renewing=True)
    for look in range(1, LOOKS + 1):
        if rate.is_cpu and not float(rate) > cap:
            break
        directions.left = correct_direction(f, directions.rays[0], directions.left, rate, cap)
        if not rate.is_cpu:
            directions.mean[0] -= (rate / cap).clamp(min=1).log()
            break
        if not math.isfinite(found := float(rate)):
            break
        directions.mean[0] = float(directions.mean[0]) - math.log(found / cap)
        if look < LOOKS:
            rate = follow_directions(f, directions)
    return first


def settle_(f: Map, cap: float, tolerance: float = 1e-6) -> Tensor:
    """Bring the rate of a map seen for the first time down to `cap`, in place; returns it, 0-d.

    Corrects direction by direction; shrinks all of W if `CORRECTIONS` corrections do not suffice.
    """
    first = rate = ray = None
    for attempt in range(2 * CORRECTIONS):
        rate, ray = strongest(f, cap=cap)
        first = rate if first is None else first
        if not bool(rate > cap * (1 + tolerance)):
            break
        if attempt < CORRECTIONS:
            correct_direction(f, ray, torch.ones_like(ray), rate, cap)
        else:
            keep = f.keep if isinstance(f.keep, float) else float(f.keep.amax())
            f.weight.mul_((cap - keep) / (rate - keep))
    assert first is not None
    return first


def strongest(
    f: Map, starts: int = 64, iterations: int = 240, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """The largest growth rate found from many starts, 0-d, and its direction (H,).

    The growth is the mean over the second half of the iterations. It is the rate if one of the
    starts finds the direction and has converged.

    cap: only rates above it matter. Iterations then end as soon as a direction that grows by `cap`
    would have outgrown all starts by a factor of `GAIN` in the second half, and so would be seen.
    """
    rays, logs = f.starts(0, starts), f.scale.new_empty(0, starts)
    for end in (
        (iterations,) if cap is None else (*(n for n in _CHECKED if n < iterations), iterations)
    ):
        rays, more = iterated(f, rays, end - len(logs))
        logs = torch.cat([logs, more])
        rates = torch.where((rays > 0).any(1), logs[end - end // 2 :].mean(0).exp(), 0.0)
        if cap is not None and bool(rates.amax() < cap * GAIN ** (-2 / end)):
            break
    # Many starts find one direction or cycle: take the first, so that rounding does not decide.
    best = (
        (rates >= rates.amax() * (1 - torch.finfo(rates.dtype).eps ** 0.5)).to(torch.uint8).argmax()
    )
    return rates[best], rays[best]


def iterated(f: Map, rays: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """`iterate` for many iterations: scales folded into the matrix, logs last, no new memory."""
    balanced = (f.weight * f.scale / f.scale[:, None]).t().contiguous()
    is_plain = (
        isinstance(f.keep, float) and isinstance(f.gain, float) and (f.keep, f.gain) == (0.0, 1.0)
    )
    lengths = rays.new_empty(iterations, len(rays))
    image, rays, tiny = torch.empty_like(rays), rays.clone(), torch.finfo(rays.dtype).tiny
    for length, column in zip(lengths, lengths[:, :, None]):
        torch.mm(rays, balanced, out=image)
        if is_plain:
            image.clamp_(min=0)
        elif f.inside:
            torch.clamp(f.keep * rays + f.gain * image, min=0, out=image)
        else:
            torch.add(f.keep * rays, f.gain * image.clamp_(min=0), out=image)
        torch.sum(image, 1, out=length).clamp_(min=tiny)
        rays, image = image.div_(column), rays
    return rays, lengths.log()


def upper_bound(f: Map, iterations: int = 100) -> Tensor:
    """An upper bound on the rate, up to rounding: the Perron root of keep + gain max(W, 0).

    It falls with iterations.
    """
    nonnegative = replace(f, weight=f.weight.clamp(min=0))
    x = torch.ones_like(f.scale)
    least = torch.full_like(x[0], torch.inf)
    for _ in range(iterations):
        y = nonnegative(x[None])[0]
        bound = (y / x).amax()
        least = torch.minimum(least, bound)
        x = positive((y / positive(bound) + x) / 2)
    return least

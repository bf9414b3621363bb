"""Growth of several directions under h -> keep h + gain relu(W h), followed from call to call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from pathsgd.kernels import native
from pathsgd.kernels.native import INT, POINTER, REAL, address, fields

STARTS = 8
"""Directions that are followed at a time."""
ITERATIONS = 8
"""Of each in one call."""
SETTLE = 40
"""Iterations of a start whose growth is not looked at."""
RIPE = 80
"""Iterations after which a start counts, unless it is fixed before."""
MEMORY = 40
"""Iterations over which the growth of a direction is averaged."""
FIXED = 0.02
"""Largest |F(r) / |F(r)| - r / |r|| of a direction that counts as fixed."""
UNRIPE = 1e12
"""Puts directions that do not count yet behind all others."""


@dataclass(frozen=True)
class Map:
    """A recurrent map h -> keep * h + gain * relu(W h). Rays are states in coordinates h / scale.

    weight: (H, H); scale: (H,), positive; keep, gain: numbers, or one for each unit (H,).
    inside: relu(keep * h + gain * W h) instead.
    """

    weight: Tensor
    scale: Tensor
    keep: Tensor | float = 0.0
    gain: Tensor | float = 1.0
    inside: bool = False

    def __call__(self, rays: Tensor) -> Tensor:
        """F of every row of `rays` (K, H)."""
        through = self._through(rays)
        if self.inside:
            return (self.keep * rays + self.gain * through).clamp(min=0)
        return self.keep * rays + self.gain * through.clamp(min=0)

    def _through(self, rays: Tensor) -> Tensor:
        return ((rays * self.scale) @ self.weight.t()) / self.scale

    def active(self, ray: Tensor) -> Tensor:
        """The gain of each unit that the ReLU lets through at a ray, 0 of the others: (H,)."""
        through = self._through(ray)
        into = self.keep * ray + self.gain * through if self.inside else through
        return torch.where(into > 0, self.gain, torch.zeros_like(ray))

    def back(self, left: Tensor, active: Tensor) -> Tensor:
        """J^T l (H,), J the Jacobian of F with these active units; `inside`: 0 at all others."""
        return self.keep * left + ((active * left / self.scale) @ self.weight) * self.scale

    def start(self, number: int) -> Tensor:
        """A ray with about half of its units, others for every number."""
        return self.starts(number, number + 1)[0]

    def starts(self, first: int, end: int) -> Tensor:
        """The rays of some numbers, (end - first, H)."""
        n = torch.arange(1, len(self.scale) + 1, device=self.scale.device)
        odd = 2 * torch.arange(first, end, device=self.scale.device)[:, None] + 1
        mixed = n * odd % 2147483648 * 2654435761
        chosen = (mixed >> 20) % 2 == 1
        chosen = chosen | ~chosen.any(1, keepdim=True)
        return chosen.to(self.scale.dtype) / chosen.sum(1, keepdim=True)


@dataclass
class Directions:
    """Directions that are followed from call to call, those that grow most first.

    rays: (K, H). age: (K,), iterations since each was started. mean: (K,), mean log growth.
    left: (H,), the start of l. started: how many have been started so far.
    """

    rays: Tensor
    age: Tensor
    mean: Tensor
    left: Tensor
    started: int

    @staticmethod
    def new(f: Map, count: int = STARTS) -> Directions:
        rays = f.starts(0, count)
        zero = torch.zeros_like(rays[:, 0])
        return Directions(rays, zero, zero.clone(), torch.ones_like(f.scale), count)


def iterate(f: Map, rays: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The rays (K, H) after the iterations, each of sum 1, and the log growth (iterations, K)."""
    logs = []
    for _ in range(iterations):
        image = f(rays)
        length = positive(image.sum(1))
        logs.append(length.log())
        rays = image / length[:, None]
    return rays, torch.stack(logs)


class FollowDirectionsCall(ctypes.Structure):
    _fields_ = [
        *fields(INT, "units count iterations settle ripe memory renewing inside started"),
        *fields(POINTER, "weight scale keep gain rays age mean"),
        *fields(REAL, "fixed alike rate"),
    ]


def follow_directions(f: Map, directions: Directions, *, renewing: bool = False) -> Tensor:
    """Iterate and sort the directions; returns the largest growth rate, 0-d; 0 if none counts.

    A direction counts when it is ripe or fixed. g is its growth in the last half of the iterations.
    Its rate is min(g, mean growth over `MEMORY`), but at least g (1 - turn) with
    turn = |F(r) / |F(r)| - r / |r||: growth of a direction that does not turn is no transient.
    Rates that differ by rounding keep their order. A direction that has reached zero is restarted.
    `renewing` also restarts the slowest direction that counts if half of all count, so every look
    tries a new one. `directions` gets new tensors.
    """
    dtype, units = f.weight.dtype, len(f.scale)
    kept = directions.rays, directions.age, directions.mean
    if dtype not in native.C_TYPES or not native.accepts(f.weight, f.scale, *kept):
        return by_torch(f, directions, renewing=renewing)
    weight, count = f.weight.contiguous(), len(directions.age)
    rays, age, mean = (t.clone(memory_format=torch.contiguous_format) for t in kept)
    keep, gain = coefficients(f)
    arguments = FollowDirectionsCall(
        units, count, ITERATIONS, SETTLE, RIPE, MEMORY, renewing, f.inside, directions.started,
        address(weight, dtype, units, units), address(f.scale, dtype, units),
        address(keep, dtype, units), address(gain, dtype, units),
        address(rays, dtype, count, units), address(age, dtype, count), address(mean, dtype, count),
        FIXED, alike(dtype), 0.0,
    )  # fmt: skip
    native.call("follow_directions", arguments, dtype)
    directions.rays, directions.age, directions.mean = rays, age, mean
    directions.started = arguments.started
    return torch.tensor(arguments.rate, dtype=dtype)


def coefficients(f: Map) -> tuple[Tensor | None, Tensor | None]:
    """keep and gain of each unit, (H,); None for those of a plain map, 0 and 1."""
    if isinstance(f.keep, float) and isinstance(f.gain, float) and (f.keep, f.gain) == (0.0, 1.0):
        return None, None
    keep, gain = (
        torch.as_tensor(c, dtype=f.scale.dtype).expand(f.scale.shape).contiguous()
        for c in (f.keep, f.gain)
    )
    return keep, gain


def by_torch(f: Map, directions: Directions, *, renewing: bool) -> Tensor:
    """`follow_directions` in torch alone."""
    if renewing:
        _renew(f, directions)
    before, logs = iterate(f, directions.rays, ITERATIONS - 1)
    rays, last = iterate(f, before, 1)
    logs, turn = torch.cat([logs, last]), turned(rays, before)
    alive = (rays > 0).any(1)
    age = torch.where(alive, directions.age + ITERATIONS, 0.0)
    weight = ITERATIONS / (age - SETTLE).clamp(ITERATIONS, MEMORY)
    mean = torch.where(alive, directions.mean + weight * (logs.mean(0) - directions.mean), 0.0)
    age = torch.where(alive & (turn < FIXED), age.clamp(min=RIPE), age)
    ripe, recent = age >= RIPE, logs[ITERATIONS // 2 :].mean(0)
    log_rates = torch.minimum(mean, recent).maximum(recent + torch.log1p(-turn.clamp(max=1)))
    keys = (log_rates.double() / alike(rays.dtype)).round()
    order = torch.where(ripe, keys, age.double() - UNRIPE).argsort(descending=True, stable=True)
    directions.rays = torch.where(alive[:, None], rays, f.start(directions.started))[order]
    directions.age, directions.mean = age[order], mean[order]
    directions.started += 1
    return torch.where(ripe, log_rates.exp(), 0.0)[order][0]


def _renew(f: Map, directions: Directions) -> None:
    """If half of all directions count, restart the slowest of them, so that new ones are tried."""
    ripe = directions.age >= RIPE
    last = ripe.sum() - 1
    slowest = (torch.arange(len(ripe), device=ripe.device) == last) & (2 * last >= len(ripe))
    directions.rays = torch.where(slowest[:, None], f.start(directions.started), directions.rays)
    directions.age = torch.where(slowest, 0.0, directions.age)
    directions.started += 1


def alike(dtype: torch.dtype) -> float:
    """By how much the log growth of one direction that was reached twice may differ."""
    return torch.finfo(dtype).eps ** 0.5


def turned(a: Tensor, b: Tensor) -> Tensor:
    """|a / |a| - b / |b||, of vectors or of each row."""
    a, b = (x / positive(x.norm(dim=-1, keepdim=True)) for x in (a, b))
    return (a - b).norm(dim=-1)


def positive(x: Tensor) -> Tensor:
    """x, at least the smallest normal number: safe to divide by."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)

"""Descent on the growth rate of any positively homogeneous map, however it is parameterised.

    F_theta(a h) = a F_theta(h), a > 0        one step of a recurrence without inputs and biases
    F(r) = rate * r,  J^T l = rate * l        J = dF / dh at r

    d rate / d theta = l^T (dF(r) / d theta) / (l . r)

is one vector-Jacobian product with cotangent l at r. This holds for a masked matrix, |V| * sign,
two thin factors, a learnt leak and a convolution alike. The smallest step in the metric K that
scales l . F(r) by cap / rate, and so lowers the rate to the cap to first order, is

    theta_i <- theta_i - (1 - cap / rate) * (c . F(r)) * (g_i / K_i) / sum_j g_j^2 / K_j
    g = c^T dF(r) / d theta

with c = l. A direction that is not fixed (a cycle, a changing support) has no l; then c = F(r),
which shortens its image. For F(h) = keep h + gain relu(W h) this is the correction of
arithmetic/growth.py. g_i^2 / K_i is invariant under rescaling, so the step is covariant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathsgd.kernels.correct_direction import NORMAL
from pathsgd.kernels.follow_directions import FIXED, positive, turned

Parameters = Mapping[str, Tensor]
Turn = Callable[[dict[str, Tensor], Tensor], Tensor]
"""F: parameters and a state -> the next state, of the same shape; differentiable operations."""


@dataclass(frozen=True)
class Direction:
    """A direction of a map, in coordinates h / scale, in which rescaled twins are one map.

    rate: 0-d. ray, image, left: r, F(r) and l, of the state's shape. is_fixed: 0-d, whether l is
    meaningful.
    """

    rate: Tensor
    ray: Tensor
    image: Tensor
    left: Tensor
    is_fixed: Tensor
    scale: Tensor | float = 1.0

    @property
    def cotangent(self) -> Tensor:
        """What is multiplied with F(r) to give the number that falls with the rate."""
        return torch.where(self.is_fixed, self.left, self.image)


def find_direction(
    turn: Turn,
    parameters: Parameters,
    start: Tensor,
    *,
    left: Tensor | None = None,
    scale: Tensor | float = 1.0,
    iterations: int = 240,
) -> Direction:
    """The direction that power iteration reaches from `start`.

    The left vector takes as many adjoint iterations.
    The rate is the mean growth in the second half of the iterations.
    """
    fixed = dict(parameters)
    ray, logs = _unit(start / scale), []
    for _ in range(iterations):
        image = turn(fixed, ray * scale) / scale
        logs.append(positive(image.norm()).log())
        ray = _unit(image)
    image, pull = _linearised(lambda h: turn(fixed, h * scale) / scale, ray)
    support = ray != 0
    left = torch.where(support, torch.ones_like(ray) if left is None else left, 0.0)
    for _ in range(iterations):
        left = _unit(torch.where(support, pull(left)[0], 0.0))
    left = left * torch.where(_dot(left, image) < 0, -1.0, 1.0)
    is_fixed = (turned(image.flatten(), ray.flatten()) < FIXED) & (
        _dot(left, image) > NORMAL * left.norm() * image.norm()
    )
    rate = torch.stack(logs[iterations // 2 :]).mean().exp()
    return Direction(rate, ray, image, left, is_fixed, scale)


def rate_gradient(turn: Turn, parameters: Parameters, found: Direction) -> dict[str, Tensor]:
    """d rate / d theta of a fixed direction, by parameter name."""
    return _pulled(turn, parameters, found, found.left / _dot(found.left, found.ray))


def lowered(
    turn: Turn,
    parameters: Parameters,
    found: Direction,
    cap: float,
    whitening: Mapping[str, Tensor | float],
) -> dict[str, Tensor]:
    """The parameters after the smallest step that lowers this rate to `cap`, to first order.

    Nothing moves if the rate is not above the cap.

    whitening: 1/sqrt(K) of every parameter; entries with 0 do not move.
    """
    gradient = _pulled(turn, parameters, found, found.cotangent)
    white = {name: whitening[name] * g for name, g in gradient.items()}
    square = torch.stack([u.square().sum() for u in white.values()]).sum()
    size = (1 - cap / found.rate) * _dot(found.cotangent, found.image) / square
    moves = (found.rate > cap) & found.rate.isfinite() & size.isfinite()
    return {
        name: torch.where(moves, p - size * whitening[name] * white[name], p)
        for name, p in parameters.items()
    }


def _pulled(
    turn: Turn, parameters: Parameters, found: Direction, cotangent: Tensor
) -> dict[str, Tensor]:
    state, scale = found.ray * found.scale, found.scale
    _, pull = _linearised(lambda theta: turn(theta, state) / scale, dict(parameters))
    gradient: dict[str, Tensor] = pull(cotangent)[0]
    return gradient


def _linearised(f: Callable[[Any], Tensor], at: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """f(at), and cotangent -> vector-Jacobian product."""
    value, pull = torch.func.vjp(f, at)[:2]
    return value, pull


def _unit(state: Tensor) -> Tensor:
    return state / positive(state.norm())


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()

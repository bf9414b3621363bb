"""Nonnegative tensors with a log-scale beside the mantissa, so that sums over paths never overflow.

    value = mantissa * exp(log_scale)

The log-scale is a constant to autograd: gradients flow through mantissas only. With g = m * exp(s)
that gives dm/dq, and kappa = dm/dq * exp(s), kappa / gamma^2 = dm/dq / m, whatever s is.

Shapes: `log_scale` is 0-d (one scale for the whole tensor) or has as many dimensions as the
mantissa, each of size 1 or of the mantissa's size. The second form is what a recurrence over
thousands of steps needs: early and late steps differ by more than float64's range and both matter.

Devices. A scale of the whole tensor is a number of the host (a 0-d tensor on the CPU), wherever the
mantissa is. Reading a mantissa synchronises its device, so a pass over a network may postpone all
checks (`postponed`): every mantissa is assumed in range, and the caller checks all of them at once
(`are_in_range`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

# Mantissas are left alone inside this range and divided by their maximum outside it. Its square
# fits float64.
_SMALL, _LARGE = 1e-100, 1e100
# Numbers of these kinds have squares inside it, from 2e-90 to 1.2e77.
_SQUARES_FIT = (torch.float32, torch.float16, torch.bfloat16)
# Scales closer than this (in nats) are merged into one: e^100 costs no mantissa its precision.
_MERGE = 100.0

_unseen: ContextVar[list[Tensor] | None] = ContextVar("unseen", default=None)


@contextmanager
def postponed() -> Iterator[list[Tensor]]:
    """Inside, no mantissa is read; the list gets the largest entry of each, as a tensor."""
    largest: list[Tensor] = []
    token = _unseen.set(largest)
    try:
        yield largest
    finally:
        _unseen.reset(token)


def postpone(*largest: Tensor) -> bool:
    """Whether looking is postponed; these are then among the numbers to look at later."""
    unseen = _unseen.get()
    if unseen is None:
        return False
    unseen.extend(largest)
    return True


def are_in_range(largest: Sequence[float]) -> bool:
    """Whether all these mantissas are in range, so that what was computed with them is right."""
    return all(top == 0 or _SMALL < top < _LARGE for top in largest)


def read(numbers: Sequence[Tensor], also: Sequence[Tensor] = ()) -> list[float]:
    """The values of 0-d tensors of one device, `also` of other dtypes, for one wait."""
    parts = [torch.stack([*group]).double() for group in (numbers, also) if group]
    return torch.cat(parts).cpu().tolist() if parts else []


def no_scale() -> Tensor:
    """The log-scale of a mantissa that is the value itself."""
    return torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Scaled:
    """mantissa * exp(log_scale); the mantissa is float64 and nonnegative."""

    mantissa: Tensor
    log_scale: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.mantissa.shape

    @property
    def uniform(self) -> bool:
        return self.log_scale.dim() == 0

    def elementwise_scale(self) -> Tensor:
        return self.log_scale.to(self.mantissa.device).expand(self.shape)

    def times(self, factor: float | Tensor) -> Scaled:
        """Multiply by a nonnegative constant, broadcastable to the mantissa."""
        return Scaled(self.mantissa * factor, self.log_scale).normalized()

    def normalized(self) -> Scaled:
        """The same value, mantissas brought back near one when they leave the comfortable range."""
        if self.mantissa.numel() == 0:
            return self
        largest = self.mantissa.detach().amax()
        if postpone(largest):
            return self
        top = float(largest)
        if top == 0 or _SMALL < top < _LARGE:
            return self
        return Scaled(self.mantissa / top, self.log_scale + math.log(top))

    def merged(self, dims: Sequence[int]) -> Scaled:
        """The same value with one scale along `dims`, as a sum over those dimensions needs it."""
        if self.uniform or not dims:
            return self
        dims = [d % self.mantissa.dim() for d in dims]
        # A zero has no scale.
        scale = torch.where(self.mantissa.detach() > 0, self.log_scale, -torch.inf).amax(
            dims, keepdim=True
        )
        scale = torch.where(scale.isfinite(), scale, 0.0)
        return self.rescaled_to(scale)

    def rescaled_to(self, scale: Tensor) -> Scaled:
        # Where the mantissa is zero the exponent may be anything: bound it, so that 0 * exp(large)
        # stays 0.
        return Scaled(self.mantissa * (self.log_scale - scale).clamp(max=700).exp(), scale)

    def with_one_scale(self) -> Scaled:
        if self.uniform:
            return self
        if self.mantissa.numel() == 0:
            return Scaled(self.mantissa, no_scale())
        one = self.merged(range(self.mantissa.dim()))
        return Scaled(one.mantissa, one.log_scale.reshape(()))

    def sum(self) -> Scaled:
        one = self.with_one_scale()
        return Scaled(one.mantissa.sum(), one.log_scale)

    def mean(self, dims: list[int]) -> Tensor:
        """The mean of the mantissa along dimensions with one scale, kept at size 1; a constant."""
        return self.mantissa.detach().mean(dims, keepdim=True)

    def spread(self, derivative: Tensor) -> Tensor:
        """A derivative in the mantissa, in the shape of the value."""
        return derivative

    def log(self) -> Tensor:
        """log of the value; -inf where it is zero."""
        return self.mantissa.detach().log() + self.log_scale


def power_of(values: Tensor, order: float) -> Scaled:
    """|values|^order in float64; the scale takes what would overflow or vanish."""
    if values.numel() > 1 and not any(values.stride()):  # one number, expanded: it stays one
        one = power_of(values[(0,) * values.dim()], order)
        return Scaled(one.mantissa.expand(values.shape), one.log_scale)
    if order == 2 and values.dtype in _SQUARES_FIT:
        wide = values.to(torch.float64)
        return Scaled(wide.square() if wide.requires_grad else wide.mul_(wide), no_scale())
    magnitude = values.to(torch.float64).abs()
    result = Scaled(magnitude.square() if order == 2 else magnitude.pow(order), no_scale())
    if not magnitude.numel() or postpone(result.mantissa.detach().amax()):
        return result
    top = float(magnitude.detach().amax())
    if top == 0 or _SMALL ** (1 / order) < top < _LARGE ** (1 / order):
        return result
    return Scaled((magnitude / top).pow(order), no_scale() + order * math.log(top))


def to_float(mantissa: Tensor, log_scale: Tensor, order: float = 1.0) -> Tensor:
    """(mantissa * exp(log_scale))^(1/order); overflows or vanishes only if the result does."""
    if order == 1 and not bool(log_scale.any()):
        return mantissa
    # The logarithm of a zero would have no gradient, also where the result does not use it.
    positive = torch.where(mantissa > 0, mantissa, 1.0)
    return torch.where(mantissa > 0, ((positive.log() + log_scale) / order).exp(), 0.0)


def add(a: Scaled, b: Scaled) -> Scaled:
    """a + b elementwise, in a scale that holds both."""
    if a.uniform and b.uniform and (a.log_scale is b.log_scale or a.log_scale == b.log_scale):
        return Scaled(a.mantissa + b.mantissa, a.log_scale).normalized()
    # A zero term must not dictate the scale.
    shape = torch.broadcast_shapes(a.shape, b.shape)
    left, right = (
        torch.where(x.mantissa.detach() > 0, x.log_scale, -torch.inf).expand(shape) for x in (a, b)
    )
    scale = torch.maximum(left, right)
    scale = torch.where(scale.isfinite(), scale, 0.0)
    if scale.numel() and scale.max() - scale.min() < _MERGE:
        scale = scale.max()
    return Scaled(a.rescaled_to(scale).mantissa + b.rescaled_to(scale).mantissa, scale).normalized()


def multiply(a: Scaled, b: Scaled) -> Scaled:
    """a * b elementwise: scales add."""
    mantissa = a.mantissa * b.mantissa
    return Scaled(
        mantissa, _aligned(a.log_scale, mantissa.dim()) + _aligned(b.log_scale, mantissa.dim())
    ).normalized()


def _aligned(scale: Tensor, dim: int) -> Tensor:
    """As many dimensions as the result has, missing ones in front as broadcasting takes them."""
    return (
        scale if scale.dim() == 0 else scale.reshape([1] * (dim - scale.dim()) + list(scale.shape))
    )


def move(operation: Callable[..., Tensor], *parts: Scaled) -> Scaled:
    """An operation that only moves entries, applied to mantissas and to scales."""
    if all(p.uniform for p in parts):
        scales = torch.stack([p.log_scale for p in parts])
        top = scales.max()
        if top == scales.min():
            return Scaled(operation(*(p.mantissa for p in parts)), top)
        if top - scales.min() < _MERGE:
            return Scaled(operation(*(p.rescaled_to(top).mantissa for p in parts)), top)
    return Scaled(
        operation(*(p.mantissa for p in parts)), operation(*(p.elementwise_scale() for p in parts))
    )

"""Images whose path sums differ near the border only: all positions inside have the same sums, and one of them is kept.

    n = before + run + after        positions along one dimension, of which the `run` inside are alike

The squared network begins with ones. A convolution sees the same wherever its window lies inside, so of a large image a
frame is what has to be computed; every layer makes it wider. The derivative in the position that is kept is the sum of
those in all that are alike, so whatever autograd makes of the small image is right for the large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled


@dataclass(frozen=True)
class Frame:
    """The positions along one dimension."""

    before: int
    run: int
    after: int

    @property
    def size(self) -> int:
        """Of the large image."""
        return self.before + self.run + self.after

    @property
    def kept(self) -> int:
        """Positions of the small image."""
        return self.before + 1 + self.after


@dataclass(frozen=True)
class Window:
    """What each position t of a result sees of an operand: the `reach` positions from stride * t - padding on.

    copies: how many positions of the result see the same; more than one where an image is enlarged.
    """

    reach: int = 1
    stride: int = 1
    padding: int = 0
    copies: int = 1

    def seen_through(self, frame: Frame, size: int) -> tuple[Frame, int] | None:
        """The result's frame, and how many of the operand's run it takes to compute it; None if nothing is alike.

        size: how many positions the result has.
        """
        if self.copies > 1:
            return Frame(*(self.copies * n for n in (frame.before, frame.run, frame.after))), 1
        first = -(-(frame.before + self.padding) // self.stride)
        last = (frame.before + frame.run + self.padding - self.reach) // self.stride
        run = last - first + 1
        if run < 1:
            return None
        return Frame(first, run, size - first - run), frame.run - (run - 1) * self.stride


@dataclass(frozen=True)
class Framed(Scaled):
    """A `Scaled` with one scale whose last dimensions are those of the small image, one frame for each."""

    frames: tuple[Frame, ...]

    def whole(self) -> Scaled:
        """The large image."""
        return Scaled(self._with_runs([frame.run for frame in self.frames]), self.log_scale)

    def sum(self) -> Scaled:
        return self.whole().sum()

    def cropped(self, sizes: Sequence[int]) -> Scaled:
        """The image with so many positions along its last dimensions, and all of them along the others."""
        others = [frame.size for frame in self.frames[: len(self.frames) - len(sizes)]]
        wanted = [*others, *sizes]
        if wanted == [frame.kept for frame in self.frames]:
            return self
        runs = [size - frame.before - frame.after for size, frame in zip(wanted, self.frames)]
        return Scaled(self._with_runs(runs), self.log_scale)

    def mean(self, dims: list[int]) -> Tensor:
        x = self.mantissa.detach()
        for d, frame in zip(self._dims, self.frames):
            if d in dims:
                inside = x.narrow(d, frame.before, 1)
                x = (x.sum(d, keepdim=True) + inside * (frame.run - 1)) / frame.size
        others = [d for d in dims if d not in self._dims]
        return x.mean(others, keepdim=True) if others else x

    def spread(self, derivative: Tensor) -> Tensor:
        """What was summed over each run, in equal parts again."""
        shares = [torch.ones(frame.kept, dtype=derivative.dtype) for frame in self.frames]
        for d, (frame, share) in enumerate(zip(self.frames, shares), 1 - len(self.frames)):
            share[frame.before] /= frame.run
            derivative = derivative * share.reshape([-1] + [1] * -d)
        return _with_runs(derivative, self.frames, [frame.run for frame in self.frames])

    @property
    def _dims(self) -> range:
        return range(self.mantissa.dim() - len(self.frames), self.mantissa.dim())

    def _with_runs(self, runs: Sequence[int]) -> Tensor:
        if all(frame.kept == 1 for frame in self.frames):  # one number, expanded: it stays one
            return self.mantissa.expand(*self.mantissa.shape[: -len(self.frames)], *runs)
        if not self.mantissa.requires_grad:
            return _with_runs(self.mantissa, self.frames, runs)
        widened: Tensor = _Widened.apply(self.mantissa, self.frames, runs)
        return widened


class _Widened(torch.autograd.Function):
    """torch would fill a large image with zeros for every piece that is cut out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frames: Sequence[Frame], runs: Sequence[int]) -> Tensor:
        ctx.frames, ctx.runs = frames, runs
        return _with_runs(x, frames, runs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0]
        for d, (frame, run) in enumerate(zip(ctx.frames, ctx.runs), grad.dim() - len(ctx.frames)):
            if run > 1:
                inside = grad.narrow(d, frame.before, run).sum(d, keepdim=True)
                after = grad.narrow(d, frame.before + run, frame.after)
                grad = torch.cat([grad.narrow(d, 0, frame.before), inside, after], d)
        return grad, None, None


def _with_runs(x: Tensor, frames: Sequence[Frame], runs: Sequence[int]) -> Tensor:
    """x with so many positions inside instead of one."""
    for d, (frame, run) in enumerate(zip(frames, runs), x.dim() - len(frames)):
        if run > 1:
            x = x.index_select(d, _positions(frame, run))
    return x


@lru_cache(1024)
def _positions(frame: Frame, run: int) -> Tensor:
    """Where each position of a widened image is found in the small one."""
    inside = torch.full((run,), frame.before)
    return torch.cat(
        [torch.arange(frame.before), inside, torch.arange(frame.before + 1, frame.kept)]
    )


def framed(x: Scaled, frames: Sequence[Frame]) -> Framed:
    """What is known to have these frames, from an image that has one position or more of each run."""
    mantissa, first = x.mantissa, x.mantissa.dim() - len(frames)
    for d, frame in enumerate(frames, first):
        if mantissa.shape[d] > frame.kept:
            end = mantissa.shape[d] - frame.after
            pieces = mantissa.narrow(d, 0, frame.before + 1), mantissa.narrow(d, end, frame.after)
            mantissa = torch.cat(pieces, d) if frame.after else pieces[0]
    return Framed(mantissa, x.log_scale, tuple(frames))


def constant(x: Scaled) -> Framed:
    """An image that is the same everywhere, in every dimension."""
    one = x.mantissa[(slice(1),) * x.mantissa.dim()]
    return Framed(one, x.log_scale, tuple(Frame(0, n, 0) for n in x.shape))


def common(frames: Sequence[Frame]) -> Frame | None:
    """The frame outside of which all of several images of one size are alike; None if there is none."""
    before, after = max(f.before for f in frames), max(f.after for f in frames)
    run = frames[0].size - before - after
    return Frame(before, run, after) if run > 0 else None

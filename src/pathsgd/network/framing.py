"""Large images whose path sums differ near the border only, computed as small images.

    n = before + run + after       positions along one dimension; the `run` inside are equal

The squared network begins with ones, and a convolution computes the same wherever its window lies
inside. So of a large image only a frame and one position inside have to be computed; every layer
makes the frame wider. The derivative in the kept position is the sum of those in all positions of
the run, so autograd on the small image gives the derivatives of the large one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.tape import Step, Value, leaves, map_leaves

if TYPE_CHECKING:
    from pathsgd.network.rules.base import Squared


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
    """What position t of a result sees: `reach` positions from stride * t - padding on.

    copies: how many positions of the result see the same; more than one where an image is enlarged.
    """

    reach: int = 1
    stride: int = 1
    padding: int = 0
    copies: int = 1

    def seen_through(self, frame: Frame, size: int) -> tuple[Frame, int] | None:
        """The result's frame, and how much of the operand's run it needs; None if nothing is alike.

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
    """A `Scaled` with one scale; its last dimensions are a small image, a frame for each."""

    frames: tuple[Frame, ...]

    def whole(self) -> Scaled:
        """The large image."""
        return Scaled(self._with_runs([frame.run for frame in self.frames]), self.log_scale)

    def sum(self) -> Scaled:
        return self.whole().sum()

    def cropped(self, sizes: Sequence[int]) -> Scaled:
        """The image with these sizes along its last dimensions, and whole along the others."""
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
    """The small image, from one with at least one position of each run."""
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
    """A frame that several images of one size share; None if there is none."""
    before, after = max(f.before for f in frames), max(f.after for f in frames)
    run = frames[0].size - before - after
    return Frame(before, run, after) if run > 0 else None


# ---- the steps of a recording that may work on small images -------------------------------------

_WORTH = 0.75
"""A small image is used if it has at most this share of the positions: cropping has a cost."""

Frames = tuple[Frame, ...]


@dataclass(frozen=True)
class Crop:
    """How a step works on small images.

    operands: how many there are. sizes: of the operands. frames: of the result.
    """

    operands: int
    sizes: tuple[int, ...]
    frames: Frames


class Framing:
    """The steps that work on small images, with the inputs that they begin with."""

    def __init__(self, steps: Sequence[Step], inputs: Sequence[Value] = ()) -> None:
        frames: dict[Value, Frames] = {v: tuple(Frame(0, n, 0) for n in v.shape) for v in inputs}
        self._crops: dict[int, Crop] = {}
        for step in steps:
            crop = _crop(step, frames)
            if crop is not None:
                self._crops[id(step)] = crop
                frames.update({v: crop.frames for v in step.outputs if v is not None})
        self._steps = steps  # held: their identities are the keys
        used = {v for step in steps if id(step) in self._crops for v in step.operands}
        self._inputs = [v for v in inputs if v in used]

    def __bool__(self) -> bool:
        """Whether there is such a step."""
        return bool(self._crops)

    def begin(self, known: dict[Value, Any]) -> None:
        """Put small images in the places of the inputs."""
        known.update({v: constant(known[v]) for v in self._inputs})

    def squared(self, net: Squared, step: Step, args: Any, kwargs: Any) -> Any:
        """A step of the squared network, on small images where that is possible."""
        crop = self._crops.get(id(step))
        if (
            crop is not None
            and sum(isinstance(a, Framed) for a in leaves((args, kwargs))) == crop.operands
        ):
            sizes = crop.sizes
            small = map_leaves(
                lambda a: a.cropped(sizes) if isinstance(a, Framed) else a, (args, kwargs)
            )
            result = step.rule.squared(net, *small[0], **small[1])
            if result.uniform:
                return framed(result, crop.frames)
        args, kwargs = map_leaves(
            lambda a: a.whole() if isinstance(a, Framed) else a, (args, kwargs)
        )
        return step.rule.squared(net, *args, **kwargs)


def _crop(step: Step, known: dict[Value, Frames]) -> Crop | None:
    """How a step works on small images; None where it cannot, or need not."""
    seen = step.rule.windows(*step.args, **step.kwargs)
    if seen is None or len(step.outputs) != 1 or step.outputs[0] is None:
        return None
    (operands, windows), shape = seen, step.outputs[0].shape
    images = [known.get(a) if isinstance(a, Value) else None for a in operands]
    given = [frames for frames in images if frames is not None]
    others = [a for a, frames in zip(operands, images) if frames is None]
    # The last dimensions, as far as all operands are alike along them.
    depth = min(len(windows), *(len(frames) for frames in given)) if given else 0
    depth = next((d for d in range(depth) if any(_size(a, d) != 1 for a in others)), depth)
    depth = next(
        (d for d in range(depth) if len({frames[-1 - d].size for frames in given}) > 1), depth
    )
    sizes: list[int] = []
    results: list[Frame] = []
    for d in range(depth):
        size, result = _seen([frames[-1 - d] for frames in given], windows[-1 - d], shape[-1 - d])
        sizes.insert(0, size)
        results.insert(0, result)
    share = math.prod(f.kept for f in results) / max(1, math.prod(f.size for f in results))
    return Crop(len(given), tuple(sizes), tuple(results)) if results and share <= _WORTH else None


def _seen(frames: Sequence[Frame], window: Window, size: int) -> tuple[int, Frame]:
    """The size that operands need along one dimension, and the frame of the result."""
    frame = common(frames)
    found = None if frame is None else window.seen_through(frame, size)
    if frame is None or found is None:
        return frames[0].size, Frame(size - 1, 1, 0)
    return frame.before + found[1] + frame.after, found[0]


def _size(operand: Any, d: int) -> int:
    """Along the last dimension but d; 1 of what is the same for all positions."""
    shape = operand.shape if isinstance(operand, (Value, Tensor)) else ()
    return shape[-1 - d] if d < len(shape) else 1

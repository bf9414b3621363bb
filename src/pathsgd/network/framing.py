"""Which values of a recording are images that differ near the border only, and which steps may work on small ones.

Every image is cut out of what ones are made into by windows that move over it (`Rule.windows`), so its frame follows
from shapes, strides and paddings alone: it is found once for a recording. See network/framed.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pathsgd.network.framed import Frame, Framed, Window, common, constant, framed
from pathsgd.network.rules.base import Squared
from pathsgd.network.tape import Step, Value, leaves, map_leaves

_WORTH = 0.75
"""A small image is used where it has at most this share of the positions: to cut and to widen images has its price."""

Frames = tuple[Frame, ...]


@dataclass(frozen=True)
class Crop:
    """How a step works on small images: the number of its operands that are, their sizes, and the result's frames."""

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
    """How long operands have to be along one dimension, and the frame of the result; the last one if all is border."""
    frame = common(frames)
    found = None if frame is None else window.seen_through(frame, size)
    if frame is None or found is None:
        return frames[0].size, Frame(size - 1, 1, 0)
    return frame.before + found[1] + frame.after, found[0]


def _size(operand: Any, d: int) -> int:
    """Along the last dimension but d; 1 of what is the same for all positions."""
    shape = operand.shape if isinstance(operand, (Value, Tensor)) else ()
    return shape[-1 - d] if d < len(shape) else 1

"""Pools. A path enters a pool through every entry of the window.

Definition. A max-pool's output node has an edge of weight 1 from each entry of its window: gamma^2 counts the paths
through all of them, so it is a polynomial, bounds the network whichever entry wins, and is invariant under rescaling.
An average pool's edges have the fixed weight 1/n, squared like any other weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.framing import Window
from pathsgd.network.rules.base import (
    NodeGraph,
    Nodes,
    Rule,
    Seen,
    Squared,
    as_scaled,
    operation,
    per_dimension,
)
from pathsgd.network.rules.pointwise import Larger, Sum
from pathsgd.network.tape import Kind

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Pool(Rule):
    """Common part: channels stay, positions of one channel are summed."""

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    @property
    def spatial(self) -> int:
        return int(self.name[self.name.index("pool") + 4])

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        ids = graph.activation(x)
        return Nodes(
            graph.merge(ids, range(ids.dim() - self.spatial, ids.dim())).expand(graph.result_shape)
        )


def _window_sums(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, spatial: int
) -> Tensor:
    """Sum over each window, (C, *) or (N, C, *): an average without its divisor, or a convolution with ones."""
    size, dilate, pad = (
        per_dimension(kernel, spatial),
        per_dimension(dilation, spatial),
        per_dimension(padding, spatial),
    )
    step = _step(size, stride)
    flat = x.reshape(-1, 1, *x.shape[x.dim() - spatial :])
    pads: list[int] = []
    for n, k, s, p, d in zip(flat.shape[2:], size, step, pad, dilate):
        reach = d * (k - 1) + 1
        count = (math.ceil if ceil_mode else math.floor)((n + 2 * p - reach) / s) + 1
        if (
            ceil_mode and (count - 1) * s >= n + p
        ):  # torch drops windows that start beyond the input
            count -= 1
        # Negative padding cuts off what no window reaches.
        pads = [p, (count - 1) * s + reach - n - p, *pads]
    padded = F.pad(flat, pads) if any(pads) else flat
    if spatial == 2 and set(dilate) == {1}:  # torch has no fast convolution for float64
        y = F.avg_pool2d(padded, size, step, divisor_override=1)
    else:
        y = _CONV[spatial](padded, x.new_ones(1, 1, *size), stride=step, dilation=dilate)
    return y.reshape(*x.shape[: x.dim() - spatial], *y.shape[2:])


def _windows(
    x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, spatial: int
) -> Seen | None:
    if ceil_mode:  # the last window may be cut short
        return None
    size, dilate, pad = (
        per_dimension(kernel, spatial),
        per_dimension(dilation, spatial),
        per_dimension(padding, spatial),
    )
    step = _step(size, stride)
    return [x], [Window(d * (k - 1) + 1, s, p) for k, d, s, p in zip(size, dilate, step, pad)]


def _step(size: tuple[int, ...], stride: Any) -> tuple[int, ...]:
    """How far apart windows are: torch takes no stride to mean that they touch."""
    return (
        size if stride is None or stride == [] or stride == () else per_dimension(stride, len(size))
    )


@operation("max_pool1d", "max_pool2d", "max_pool3d")
class MaxPool(Pool):
    summary = "a max-pool: paths through every entry of the window, weight 1"

    def windows(
        self, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Seen | None:  # fmt: skip
        return _windows(x, kernel_size, stride, padding, dilation, ceil_mode, self.spatial)

    def squared(
        self, net: Squared, x: Scaled, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Scaled:  # fmt: skip
        x = x.with_one_scale()
        y = _window_sums(
            x.mantissa, kernel_size, stride, padding, dilation, ceil_mode, self.spatial
        )
        return Scaled(y, x.log_scale).normalized()


@operation("avg_pool1d", "avg_pool2d", "avg_pool3d")
class AveragePool(Pool):
    summary = "an average pool: fixed weights 1/n, squared"

    def windows(
        self, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, *args: Any,
        **kwargs: Any,
    ) -> Seen | None:  # fmt: skip
        return _windows(x, kernel_size, stride, padding, 1, ceil_mode, self.spatial)

    def squared(
        self, net: Squared, x: Scaled, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Scaled:  # fmt: skip
        x = x.with_one_scale()
        options = (kernel_size, stride, padding)
        sums = _window_sums(x.mantissa, *options, 1, ceil_mode, self.spatial)
        # torch decides the divisor (borders, divisor_override, ceil_mode): ask it, with ones.
        ones = x.mantissa.new_ones(x.shape)
        rest = () if self.spatial == 1 else (divisor_override,)
        average = getattr(F, self.name)(
            ones, kernel_size, stride, padding, ceil_mode, count_include_pad, *rest
        )
        divisor = _window_sums(ones, *options, 1, ceil_mode, self.spatial) / average
        return Scaled(sums * divisor**-net.order, x.log_scale).normalized()


def _adaptive_counts(x: Tensor, out_shape: torch.Size, spatial: int) -> Tensor:
    """How many entries each adaptive window has: ceil((j+1) n / m) - floor(j n / m) along each dimension."""
    count = x.new_ones(())
    for n, m in zip(x.shape[x.dim() - spatial :], out_shape[len(out_shape) - spatial :]):
        j = torch.arange(m, device=x.device)
        length = ((j + 1) * n + m - 1).div(m, rounding_mode="floor") - (j * n).div(
            m, rounding_mode="floor"
        )
        count = count[..., None] * length.to(x.dtype)
    return count


@operation(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
)  # fmt: skip
class AdaptivePool(Pool):
    summary = "an adaptive pool: fixed weights 1/n squared (average), or 1 (max)"

    def squared(
        self, net: Squared, x: Scaled, output_size: Any, return_indices: bool = False
    ) -> Scaled:
        x = x.with_one_scale()
        average = getattr(F, f"adaptive_avg_pool{self.spatial}d")(x.mantissa, output_size)
        counts = _adaptive_counts(x.mantissa, average.shape, self.spatial)
        weight = counts ** (1 - net.order) if "avg" in self.name else counts
        return Scaled(average * weight, x.log_scale).normalized()


@operation("amax", "amin")
class Extreme(Sum):
    """The largest entry along dimensions: a pool over all of them."""

    summary = "the largest or smallest entry along dimensions: paths through every entry, weight 1"

    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION


@operation("max", "min")
class ExtremeAndPlace(Extreme):
    """Also with the place of the largest entry, which is data; of two tensors, the larger entry by entry."""

    _larger = Larger("maximum")

    def squared(self, net: Squared, x: Any, dim: Any = None, keepdim: bool = False) -> Any:  # type: ignore[override]
        if isinstance(dim, (Scaled, Tensor)):
            return self._larger.squared(net, x, dim)
        largest = super().squared(net, as_scaled(net, x), dim, keepdim)
        return largest if dim is None else (largest, None)

    def nodes(self, graph: NodeGraph, x: Any, dim: Any = None, keepdim: bool = False) -> Any:  # type: ignore[override]
        if isinstance(dim, (Nodes, Tensor)):
            return self._larger.nodes(graph, x, dim)
        largest = super().nodes(graph, x, dim, keepdim)
        return largest if dim is None else (largest, None)

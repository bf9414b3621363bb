"""Pools. A path enters a pool through every entry of the window.

A max-pool's output node has an edge of weight 1 from each entry of its window: gamma^2 counts the
paths through all of them. So it is a polynomial, bounds the network whichever entry is the largest,
and does not change under rescaling. An average pool's edges have the fixed weight 1/n, squared like
any other weight.
"""

from __future__ import annotations

import math
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

    kind = Kind.ACTIVATION

    @property
    def spatial(self) -> int:
        return int(self.name[self.name.index("pool") + 4])

    def nodes(self, graph: NodeGraph, x: Nodes, *args: Any, **kwargs: Any) -> Nodes:
        ids = graph.activation(x)
        merged = graph.merge(ids, range(ids.dim() - self.spatial, ids.dim()))
        return Nodes(merged.expand(graph.result_shape))


class WindowPool(Pool):
    """A pool over windows of one size."""

    def windows(self, *args: Any, **kwargs: Any) -> Seen | None:
        call = self.arguments(args, kwargs)
        if call.ceil_mode:  # the last window may be cut short
            return None
        options = (call.kernel_size, call.stride, call.padding, getattr(call, "dilation", 1))
        return [call.x], [
            Window(d * (k - 1) + 1, s, p) for k, s, p, d in _options(self.spatial, *options)
        ]


def _options(
    spatial: int, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> list[tuple[int, ...]]:
    """Size, stride, padding and dilation along each dimension; no stride: windows that touch."""
    size = per_dimension(kernel, spatial)
    is_given = stride is not None and stride != [] and stride != ()
    step = per_dimension(stride, spatial) if is_given else size
    return list(zip(size, step, per_dimension(padding, spatial), per_dimension(dilation, spatial)))


def _window_sums(
    x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, spatial: int
) -> Tensor:
    """Sum over each window, (C, *) or (N, C, *)."""
    options = _options(spatial, kernel, stride, padding, dilation)
    flat = x.reshape(-1, 1, *x.shape[x.dim() - spatial :])
    pads: list[int] = []
    for n, (k, s, p, d) in zip(flat.shape[2:], options):
        reach = d * (k - 1) + 1
        count = (math.ceil if ceil_mode else math.floor)((n + 2 * p - reach) / s) + 1
        if ceil_mode and (count - 1) * s >= n + p:  # torch drops windows beyond the input
            count -= 1
        # Negative padding cuts off what no window reaches.
        pads = [p, (count - 1) * s + reach - n - p, *pads]
    padded = F.pad(flat, pads) if any(pads) else flat
    size, step, _, dilate = zip(*options)
    if spatial == 2 and set(dilate) == {1}:  # torch has no fast convolution for float64
        y = F.avg_pool2d(padded, size, step, divisor_override=1)
    else:
        y = _CONV[spatial](padded, x.new_ones(1, 1, *size), stride=step, dilation=dilate)
    return y.reshape(*x.shape[: x.dim() - spatial], *y.shape[2:])


@operation("max_pool1d max_pool2d max_pool3d")
class MaxPool(WindowPool):
    summary = "a max-pool: paths through every entry of the window, weight 1"

    def squared(
        self, net: Squared, x: Scaled, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Scaled:  # fmt: skip
        x, options = x.with_one_scale(), (kernel_size, stride, padding, dilation, ceil_mode)
        return Scaled(_window_sums(x.mantissa, *options, self.spatial), x.log_scale).normalized()


@operation("avg_pool1d avg_pool2d avg_pool3d")
class AveragePool(WindowPool):
    summary = "an average pool: fixed weights 1/n, squared"

    def squared(
        self, net: Squared, x: Scaled, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Scaled:  # fmt: skip
        x, options = x.with_one_scale(), (kernel_size, stride, padding)
        sums = _window_sums(x.mantissa, *options, 1, ceil_mode, self.spatial)
        # torch knows the divisor (borders, divisor_override, ceil_mode): the average of ones.
        ones = x.mantissa.new_ones(x.shape)
        rest = () if self.spatial == 1 else (divisor_override,)
        average = getattr(F, self.name)(ones, *options, ceil_mode, count_include_pad, *rest)
        divisor = _window_sums(ones, *options, 1, ceil_mode, self.spatial) / average
        return Scaled(sums * divisor**-net.order, x.log_scale).normalized()


def _adaptive_counts(x: Tensor, out_shape: torch.Size, spatial: int) -> Tensor:
    """The size of each adaptive window: ceil((j+1) n / m) - floor(j n / m) along each dimension."""
    count = x.new_ones(())
    for n, m in zip(x.shape[x.dim() - spatial :], out_shape[len(out_shape) - spatial :]):
        j = torch.arange(m, device=x.device)
        end = ((j + 1) * n + m - 1).div(m, rounding_mode="floor")
        length = end - (j * n).div(m, rounding_mode="floor")
        count = count[..., None] * length.to(x.dtype)
    return count


@operation(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
)
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


@operation("amax amin")
class Extreme(Sum):
    """The largest entry along dimensions: a pool over all of them."""

    summary = "the largest or smallest entry along dimensions: paths through every entry, weight 1"
    kind = Kind.ACTIVATION


@operation("max min")
class ExtremeAndPlace(Extreme):
    """Also with the place of the largest entry, which is data; or the larger of two tensors."""

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

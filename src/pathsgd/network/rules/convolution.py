"""Convolutions and transposed convolutions. Channels are units, positions share their weights.

Index glossary: o output channel, i input channel, s position, k kernel position; W[o, i, k] is the
edge (i, s + k) -> (o, s) for every s. Zero padding starts no paths.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.kernels.squared_convolution import Sliding
from pathsgd.network.framing import Window
from pathsgd.network.rules.base import (
    NodeGraph,
    Nodes,
    Seen,
    Squared,
    as_scaled,
    contraction,
    operation,
    per_dimension,
)
from pathsgd.network.rules.linear import ProductRule
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Kind, Product, values_in
from pathsgd.network.unsquared import UnsquaredKernel


class ConvolutionRule(ProductRule):
    kind = Kind.ACTIVATION
    is_transposed = False
    """Whether the kernel is stored as (i, o within the group, k)."""

    @property
    def spatial(self) -> int:
        return int(self.name[-2])

    def products(self, x: Any, weight: Any, *args: Any, **kwargs: Any) -> list[Product]:
        return [[[v] for v in values_in((x, weight))]]

    def _squared(
        self, net: Squared, x: Any, weight: Any, bias: Any, *options: Any, sliding: Any = None
    ) -> Scaled:
        op = getattr(F, self.name)

        def product(m: Tensor, w: Tensor) -> Tensor:
            return op(m, w, None, *options)

        if isinstance(weight, UnsquaredKernel):
            row_dim = None if self.is_transposed else -1 - self.spatial
            y = weight.of(as_scaled(net, x), product, row_dim, sliding)
        else:
            y = contraction(net, product, x, weight)
        if bias is None:
            return y
        b = as_scaled(net, bias).with_one_scale()
        return scaled.add(y, Scaled(b.mantissa.reshape(self._column), b.log_scale))

    def nodes(self, graph: NodeGraph, *args: Any, **kwargs: Any) -> Nodes:
        call = self.arguments(args, kwargs)
        ids, weight, groups = graph.activation(call.x), call.weight, call.groups
        channel = ids.dim() - self.spatial - 1
        source = graph.merge(ids, [d for d in range(ids.dim()) if d != channel])
        source = source.reshape(groups, -1)
        outputs = weight.shape[1] * groups if self.is_transposed else weight.shape[0]
        if isinstance(weight, Nodes):
            target = graph.fresh(outputs)
            rows = (1, *self._column[1:])
            if self.is_transposed:
                by_input = target.reshape(groups, -1)
                by_input = by_input.repeat_interleave(weight.shape[0] // groups, 0)  # (i, o)
                by_input = by_input.reshape(*by_input.shape, *self._column[1:])
                graph.edges(weight, by_input, source.reshape(-1, *rows))
            else:
                by_output = source.repeat_interleave(outputs // groups, 0)  # (o, i)
                by_output = by_output.reshape(*by_output.shape, *self._column[1:])
                graph.edges(weight, target.reshape(-1, *rows), by_output)
        else:  # fixed weights: a sum over the channels of a group
            target = graph.merge(source, [1]).repeat_interleave(outputs // groups)
        if call.bias is not None:
            target = add_nodes(graph, Nodes(target), call.bias).ids
        return Nodes(target.reshape(self._column).expand(graph.result_shape))

    @property
    def _column(self) -> list[int]:
        return [-1] + [1] * self.spatial


@operation("conv1d conv2d conv3d")
class Convolution(ConvolutionRule):
    """y[o, s] = sum_{i, k} W[o, i, k] x[i, s + k] + b_o."""

    summary = "a convolution: squared kernel, squared bias"

    def squared(
        self, net: Squared, x: Any, weight: Any, bias: Any = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Scaled:  # fmt: skip
        sliding = None
        if self.spatial == 2 and groups == 1 and not isinstance(padding, str):
            sliding = Sliding(*(per_dimension(value, 2) for value in (stride, padding, dilation)))  # type: ignore[arg-type]
        options = (stride, padding, dilation, groups)
        return self._squared(net, x, weight, bias, *options, sliding=sliding)

    def windows(self, *args: Any, **kwargs: Any) -> Seen:
        call, spatial = self.arguments(args, kwargs), self.spatial
        sizes, padding = call.weight.shape[-spatial:], call.padding
        reach = [d * (k - 1) + 1 for k, d in zip(sizes, per_dimension(call.dilation, spatial))]
        named = {"same": [(r - 1) // 2 for r in reach], "valid": [0] * spatial}
        pads = named[padding] if isinstance(padding, str) else per_dimension(padding, spatial)
        strides = per_dimension(call.stride, spatial)
        return [call.x], [Window(*three) for three in zip(reach, strides, pads)]


@operation("conv_transpose1d conv_transpose2d conv_transpose3d")
class TransposedConvolution(ConvolutionRule):
    """The adjoint of a convolution."""

    summary = "a transposed convolution: squared kernel, squared bias"
    is_transposed = True

    def squared(
        self, net: Squared, x: Any, weight: Any, bias: Any = None, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Scaled:  # fmt: skip
        options = (stride, padding, output_padding, groups, dilation)
        return self._squared(net, x, weight, bias, *options)

"""Convolutions and transposed convolutions. Channels are units, positions share their weights.

Index glossary: o output channel, i input channel, s position, k kernel position; W[o, i, k] is the edge
(i, s + k) -> (o, s) for every s. Paths through zero padding do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    shape_of,
)
from pathsgd.network.rules.linear import ProductRule
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Kind, Product, values_in
from pathsgd.network.unsquared import UnsquaredKernel


class ConvolutionRule(ProductRule):
    def result_kind(self, kinds: Iterable[Kind]) -> Kind:
        return Kind.ACTIVATION

    @property
    def spatial(self) -> int:
        return int(self.name[-2])

    @property
    def row_dim(self) -> int | None:
        """The dimension of the result that rows of the kernel lead to; None if none does."""
        return -1 - self.spatial

    def products(self, x: Any, weight: Any, *args: Any, **kwargs: Any) -> list[Product]:
        return [[[v] for v in values_in((x, weight))]]

    def _squared(
        self,
        net: Squared,
        x: Any,
        weight: Any,
        bias: Any,
        options: tuple[Any, ...],
        sliding: Sliding | None = None,
    ) -> Scaled:
        op = getattr(F, self.name)

        def product(m: Tensor, w: Tensor) -> Tensor:
            return op(m, w, None, *options)

        if isinstance(weight, UnsquaredKernel):
            y = weight.of(as_scaled(net, x), product, self.row_dim, sliding)
        else:
            y = contraction(net, product, x, weight)
        if bias is None:
            return y
        b = as_scaled(net, bias).with_one_scale()
        return scaled.add(y, Scaled(b.mantissa.reshape(self._column), b.log_scale))

    def _channels(self, graph: NodeGraph, x: Any, groups: int) -> Tensor:
        """One node per input channel, (groups, channels in a group)."""
        ids = graph.activation(x)
        channel = ids.dim() - self.spatial - 1
        return graph.merge(ids, [d for d in range(ids.dim()) if d != channel]).reshape(groups, -1)

    def _result(self, graph: NodeGraph, out: Tensor, bias: Any) -> Nodes:
        """Output channels `out` at every position, with their bias."""
        if bias is not None:
            out = add_nodes(graph, Nodes(out), bias).ids
        return Nodes(out.reshape(self._column).expand(graph.result_shape))

    @property
    def _column(self) -> list[int]:
        return [-1] + [1] * self.spatial


@operation("conv1d", "conv2d", "conv3d")
class Convolution(ConvolutionRule):
    """y[o, s] = sum_{i, k} W[o, i, k] x[i, s + k] + b_o."""

    summary = "a convolution: squared kernel, squared bias"

    def squared(
        self, net: Squared, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Scaled:  # fmt: skip
        sliding = None
        if self.spatial == 2 and groups == 1 and not isinstance(padding, str):
            sliding = Sliding(*(per_dimension(value, 2) for value in (stride, padding, dilation)))  # type: ignore[arg-type]
        return self._squared(net, x, weight, bias, (stride, padding, dilation, groups), sliding)

    def windows(
        self, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Seen:  # fmt: skip
        reach = [
            d * (k - 1) + 1
            for k, d in zip(weight.shape[-self.spatial :], per_dimension(dilation, self.spatial))
        ]
        named = {"same": [(r - 1) // 2 for r in reach], "valid": [0] * self.spatial}
        pads = named[padding] if isinstance(padding, str) else per_dimension(padding, self.spatial)
        return [x], [
            Window(*three) for three in zip(reach, per_dimension(stride, self.spatial), pads)
        ]

    def nodes(
        self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Nodes:  # fmt: skip
        into, shape = self._channels(graph, x, groups), shape_of(weight)
        if not isinstance(weight, Nodes):  # fixed weights: a sum over the channels of a group
            return self._result(
                graph, graph.merge(into, [1]).repeat_interleave(shape[0] // groups), bias
            )
        out = graph.fresh(shape[0])
        by_output = into.repeat_interleave(shape[0] // groups, 0)  # (o, i)
        graph.edges(
            weight,
            out.reshape(-1, 1, *self._column[1:]),
            by_output.reshape(*by_output.shape, *self._column[1:]),
        )
        return self._result(graph, out, bias)


@operation("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
class TransposedConvolution(ConvolutionRule):
    """The adjoint of a convolution; its kernel is stored (i, o within the group, k)."""

    summary = "a transposed convolution: squared kernel, squared bias"
    row_dim = None

    def squared(
        self, net: Squared, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Scaled:  # fmt: skip
        return self._squared(
            net, x, weight, bias, (stride, padding, output_padding, groups, dilation)
        )

    def nodes(
        self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Nodes:  # fmt: skip
        into, shape = self._channels(graph, x, groups), shape_of(weight)
        if not isinstance(weight, Nodes):
            return self._result(graph, graph.merge(into, [1]).repeat_interleave(shape[1]), bias)
        out = graph.fresh(groups * shape[1])
        by_input = out.reshape(groups, -1).repeat_interleave(shape[0] // groups, 0)  # (i, o)
        graph.edges(
            weight,
            by_input.reshape(*by_input.shape, *self._column[1:]),
            into.reshape(-1, 1, *self._column[1:]),
        )
        return self._result(graph, out, bias)

"""Products with weights: linear maps, matrix products, convolutions, embeddings.

Index glossary: o output unit or channel, i input unit or channel; a weight's entry is the edge i -> o.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd import scaled
from pathsgd.rules.base import NodeGraph, Nodes, Refusal, Rule, Squared, Value, as_scaled, contraction, operation
from pathsgd.rules.pointwise import add_nodes
from pathsgd.scaled import Scaled


class Product(Rule):
    multiplies = True


@operation("linear")
class Linear(Product):
    """y_o = sum_i W[o, i] x_i + b_o."""

    summary = "a linear map: squared weights, squared bias"

    def squared(self, net: Squared, x: Any, weight: Any, bias: Any = None) -> Scaled:
        y = contraction(net, F.linear, x, weight, dim=-1)
        return y if bias is None else scaled.add(y, as_scaled(net, bias))

    def nodes(self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None) -> Nodes:
        ids = graph.activation(x)
        shape = weight.ids.shape if isinstance(weight, Nodes) else weight.shape
        out = graph.fresh(shape[0]) if len(shape) == 2 else graph.fresh()
        graph.edges(weight, out[..., None], graph.per_entry(ids, -1))
        if bias is not None:
            graph.edges(bias, out, 0)
        return Nodes(out.expand(*ids.shape[:-1], *shape[:-1]))


@operation("matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "dot", "inner")
class MatrixProduct(Product):
    """Matrix products in which one side is made of parameters or constants."""

    summary = "a matrix product with squared weights"

    def squared(self, net: Squared, a: Any, b: Any) -> Scaled:
        op = torch.inner if self.name == "inner" else torch.matmul
        if self.name == "__rmatmul__":
            a, b = b, a
        a, b = as_scaled(net, a), as_scaled(net, b)
        if self.name != "inner" and a.mantissa.dim() >= 2 and b.mantissa.dim() == 2 and b.uniform:
            return contraction(net, op, a, b, dim=-1)
        return contraction(net, op, a, b)

    def nodes(self, graph: NodeGraph, a: Any, b: Any) -> Nodes:
        if self.name == "__rmatmul__":
            a, b = b, a
        return matmul_nodes(graph, a, b) if self.name != "inner" else graph.pinned(a, b)


def matmul_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """a @ b with the weight on either side; a constant without paths on the other side counts as values of units."""
    a_weight, b_weight = (isinstance(x, Nodes) and x.weight for x in (a, b))
    if a_weight == b_weight:
        return graph.pinned(a, b)
    weight, values = (a, graph.activation(b)) if a_weight else (b, graph.activation(a))
    if weight.ids.dim() != 2 or values.dim() < 1 or (a_weight and values.dim() > 2):
        return graph.pinned(a, b)
    if b_weight:
        out = graph.fresh(weight.ids.shape[1])
        graph.edges(weight, out, graph.per_entry(values, -1)[:, None])
        return Nodes(out.expand(graph.result_shape))
    out = graph.fresh(weight.ids.shape[0])
    graph.edges(weight, out[:, None], graph.per_entry(values, 0))
    return Nodes(out if values.dim() == 1 else out[:, None].expand(graph.result_shape))


@operation("addmm", "addmv", "baddbmm", "addbmm")
class AddedProduct(Product):
    """beta * c + alpha * (a @ b)."""

    summary = "a matrix product with squared weights, plus a term"

    def check(self, c: Any, a: Any, b: Any, **kwargs: Any) -> None:
        if self.name == "addbmm":
            raise Refusal("addbmm sums over its batch; write it as matmul and sum")

    def factors(self, c: Any, a: Any, b: Any, **kwargs: Any) -> list[list[Value]]:
        return [[x] for x in (a, b) if isinstance(x, Value)]

    def squared(self, net: Squared, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Scaled:
        product = contraction(net, torch.matmul, a, b).times(abs(alpha) ** net.order)
        return scaled.add(as_scaled(net, c).times(abs(beta) ** net.order), product)

    def nodes(self, graph: NodeGraph, c: Any, a: Any, b: Any, **kwargs: Any) -> Nodes:
        return add_nodes(graph, c, matmul_nodes(graph, a, b))


@operation("embedding")
class Embedding(Product):
    """Rows chosen by integer inputs. The all-ones input over a vocabulary is the sum of all squared rows.

    Node 0 (fixed) is the one-hot input; a row's entry is an edge from its word.
    """

    summary = "a lookup: the sum of all squared rows (all-ones over the vocabulary)"

    def check(self, index: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(index, Value):
            raise Refusal("indices cannot depend on activations")
        if max_norm is not None:
            raise Refusal("max_norm changes the weights in the forward pass; renormalise them outside the model")

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        bound = {**dict(zip(("input", "weight"), args)), **kwargs}
        return bound["weight"].new_empty((*bound["input"].shape, bound["weight"].shape[1]))

    def squared(self, net: Squared, index: Tensor, weight: Any, *args: Any, **kwargs: Any) -> Scaled:
        weight = as_scaled(net, weight).with_one_scale()
        rows = weight.mantissa.sum(0)
        return Scaled(rows.expand(*index.shape, rows.shape[0]), weight.log_scale)

    def nodes(self, graph: NodeGraph, index: Tensor, weight: Any, *args: Any, **kwargs: Any) -> Nodes:
        shape = weight.ids.shape if isinstance(weight, Nodes) else weight.shape
        out = graph.fresh(shape[1])
        graph.edges(weight, out, 0)
        return Nodes(out.expand(*index.shape, shape[1]))


def _with_bias(net: Squared, y: Scaled, bias: Any, spatial: int) -> Scaled:
    if bias is None:
        return y
    b = as_scaled(net, bias)
    return scaled.add(y, Scaled(b.mantissa.reshape(-1, *[1] * spatial), b.log_scale))


def _channel_nodes(graph: NodeGraph, x: Any, spatial: int) -> tuple[Tensor, Tensor]:
    ids = graph.activation(x)
    return ids, graph.per_entry(ids, ids.dim() - spatial - 1)


@operation("conv1d", "conv2d", "conv3d")
class Convolution(Product):
    """y[o, s] = sum_{i, k} W[o, i, k] x[i, s + k] + b_o; paths through zero padding do not exist."""

    summary = "a convolution: squared kernel, squared bias"

    def squared(self, net: Squared, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Scaled:
        op = getattr(F, self.name)
        y = contraction(net, lambda m, w: op(m, w, None, *args, **kwargs), x, weight)
        return _with_bias(net, y, bias, spatial=int(self.name[4]))

    def nodes(self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Nodes:
        spatial = int(self.name[4])
        groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)
        _, into = _channel_nodes(graph, x, spatial)
        shape = weight.ids.shape if isinstance(weight, Nodes) else weight.shape
        out = graph.fresh(shape[0])
        by_group = into.reshape(groups, shape[1]).repeat_interleave(shape[0] // groups, 0)  # (o, i)
        graph.edges(weight, out.reshape(-1, 1, *[1] * spatial), by_group.reshape(*by_group.shape, *[1] * spatial))
        if bias is not None:
            graph.edges(bias, out, 0)
        result = graph.result_shape
        return Nodes(out.reshape(-1, *[1] * spatial).expand(result))


@operation("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
class TransposedConvolution(Product):
    """The adjoint of a convolution; its kernel is stored (i, o per group, k)."""

    summary = "a transposed convolution: squared kernel, squared bias"

    def squared(self, net: Squared, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Scaled:
        op = getattr(F, self.name)
        y = contraction(net, lambda m, w: op(m, w, None, *args, **kwargs), x, weight)
        return _with_bias(net, y, bias, spatial=int(self.name[14]))

    def nodes(self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Nodes:
        spatial = int(self.name[14])
        groups = kwargs.get("groups", args[3] if len(args) > 3 else 1)
        _, into = _channel_nodes(graph, x, spatial)
        shape = weight.ids.shape if isinstance(weight, Nodes) else weight.shape
        out = graph.fresh(shape[1] * groups)
        by_group = out.reshape(groups, shape[1]).repeat_interleave(shape[0] // groups, 0)  # (i, o)
        graph.edges(weight, by_group.reshape(*by_group.shape, *[1] * spatial), into.reshape(-1, 1, *[1] * spatial))
        if bias is not None:
            graph.edges(bias, out, 0)
        result = graph.result_shape
        return Nodes(out.reshape(-1, *[1] * spatial).expand(result))

"""Products with weights: linear maps, matrix products, Einstein sums.

Index glossary: o output unit, i input unit; a weight's entry is the edge i -> o. In the node
analysis every product is an Einstein sum, so that one function decides which indices are units and
which are positions a weight is shared over.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import (
    NOTHING,
    NodeGraph,
    Nodes,
    Rule,
    Squared,
    as_scaled,
    contraction,
    operation,
)
from pathsgd.network.rules.pointwise import add_nodes
from pathsgd.network.tape import Product, values_in
from pathsgd.network.unsquared import UnsquaredMatrix


def product_nodes(
    graph: NodeGraph, a: Any, a_letters: str, b: Any, b_letters: str, out_letters: str
) -> Nodes:
    """out = einsum(a, b), one side weights or constants, the other values of units.

    A letter of the weight is one of its units; a letter the weight lacks is a position it is shared
    over, so the values must have one scale along it.
    """
    if any(
        isinstance(x, Tensor) and not bool(x.any()) for x in (a, b)
    ):  # a state of zeros carries nothing
        return Nodes(torch.tensor(NOTHING).expand(graph.result_shape))
    if any(len(set(letters)) < len(letters) for letters in (a_letters, b_letters, out_letters)):
        return graph.pinned(a, b)
    # Two weights: the first becomes values, biases. A weight and a constant: the constant does.
    values = [isinstance(x, Nodes) and not x.weight for x in (a, b)]
    second = values[1] or not (values[0] or isinstance(b, Nodes))
    weight, w, x, v = (a, a_letters, b, b_letters) if second else (b, b_letters, a, a_letters)
    ids = graph.activation(x)
    sizes = dict(zip(v, ids.shape)) | dict(zip(w, weight.shape))
    if not isinstance(weight, Nodes):  # fixed weights: a sum over what they contract
        merged = graph.merge(
            ids, [k for k, letter in enumerate(v) if letter in w and letter not in out_letters]
        )
        return Nodes(_arranged(merged, v, out_letters).expand(graph.result_shape))
    into = graph.merge(ids, [k for k, letter in enumerate(v) if letter not in w])
    units = "".join(letter for letter in w if letter in out_letters)
    out = graph.fresh(*(sizes[letter] for letter in units))
    graph.edges(weight, _arranged(out, units, w), _arranged(into, v, w))
    return Nodes(_arranged(out, units, out_letters).expand(graph.result_shape))


def _arranged(ids: Tensor, letters: str, wanted: str) -> Tensor:
    """The dimensions of `ids` in the order of `wanted`; size 1 for letters that are missing."""
    dropped = [k for k, letter in enumerate(letters) if letter not in wanted]
    kept = [letter for letter in letters if letter in wanted]
    ids = ids.squeeze(dropped) if dropped else ids
    ids = ids.permute([kept.index(letter) for letter in wanted if letter in kept])
    for k, letter in enumerate(wanted):
        if letter not in kept:
            ids = ids.unsqueeze(k)
    return ids


class ProductRule(Rule):
    multiplies = True


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """F.linear; if all weights are one number, as for counting paths, from the sum of x."""
    if weight.dim() != 2 or any(weight.stride()) or not weight.numel():
        return F.linear(x, weight)
    return (x.sum(-1, keepdim=True) * weight[0, 0]).expand(*x.shape[:-1], len(weight))


@operation("linear")
class Linear(ProductRule):
    """y_o = sum_i W[o, i] x_i + b_o."""

    summary = "a linear map: squared weights, squared bias"
    slices = "rows"

    def products(self, x: Any, weight: Any, bias: Any = None) -> list[Product]:
        return [[[v] for v in values_in((x, weight))]]

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        x, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        if (
            x.shape[-1:] != weight.shape[-1:] or x.dtype != weight.dtype
        ):  # let torch say what is wrong
            return operation(*args, **kwargs)
        return x.new_empty((*x.shape[:-1], *weight.shape[:-1]))

    def squared(self, net: Squared, x: Any, weight: Any, bias: Any = None) -> Scaled:
        if isinstance(weight, UnsquaredMatrix):
            y = weight.of(as_scaled(net, x))
        else:
            y = contraction(net, _linear, x, weight, last=True)
        return y if bias is None else scaled.add(y, as_scaled(net, bias))

    def nodes(self, graph: NodeGraph, x: Any, weight: Any, bias: Any = None) -> Nodes:
        dim = len(x.shape)
        letters = ascii_letters[: dim - 1]
        w = "YZ" if len(weight.shape) == 2 else "Z"
        y = product_nodes(graph, x, letters + "Z", weight, w, letters + w[:-1])
        return y if bias is None else add_nodes(graph, y, bias)


def _matmul_letters(a: Sequence[int], b: Sequence[int]) -> tuple[str, str, str]:
    """Letters of a (batch, Y, Z) @ b (batch, Z, X), aligned on the right; vectors lack Y or X."""
    batch = ascii_letters[: max(len(a), len(b), 2) - 2]
    left = (batch[len(batch) - len(a) + 2 :] + "Y" if len(a) > 1 else "") + "Z"
    right = (
        (batch[len(batch) - len(b) + 2 :] if len(b) > 1 else "") + "Z" + ("X" if len(b) > 1 else "")
    )
    return left, right, batch + ("Y" if len(a) > 1 else "") + ("X" if len(b) > 1 else "")


def matmul_nodes(graph: NodeGraph, a: Any, b: Any) -> Nodes:
    """The node relation of a @ b."""
    shapes = a.shape, b.shape
    letters = _matmul_letters(*shapes)
    sizes: dict[str, int] = {}
    for letter, size in [*zip(letters[0], shapes[0]), *zip(letters[1], shapes[1])]:
        if sizes.setdefault(letter, size) != size:  # a batch dimension of size 1 that is broadcast
            return graph.pinned(a, b)
    return product_nodes(graph, a, letters[0], b, letters[1], letters[2])


@operation("matmul", "__rmatmul__", "mm", "mv", "bmm", "dot", "inner")
class MatrixProduct(ProductRule):
    """Matrix products in which one side is made of parameters or constants."""

    summary = "a matrix product with squared weights"
    slices = "rows"

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        return args[::-1] if self.name == "__rmatmul__" else args

    def shape(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return super().shape(
            torch.matmul if self.name == "__rmatmul__" else operation, args, kwargs
        )

    def squared(self, net: Squared, a: Any, b: Any) -> Scaled:
        if isinstance(b, UnsquaredMatrix):
            return b.of(as_scaled(net, a), turned=True)
        a, b = as_scaled(net, a), as_scaled(net, b)
        if self.name == "inner":
            return contraction(net, torch.inner, a, b)
        return contraction(net, torch.matmul, a, b, last=b.mantissa.dim() <= 2)

    def nodes(self, graph: NodeGraph, a: Any, b: Any) -> Nodes:
        if self.name != "inner":
            return matmul_nodes(graph, a, b)
        left, right = len(a.shape), len(b.shape)
        if min(left, right) == 0:
            return graph.pinned(a, b)
        first, second = ascii_letters[: left - 1], ascii_letters[left : left + right - 1]
        return product_nodes(graph, a, first + "Z", b, second + "Z", first + second)


@operation("addmm", "addmv", "baddbmm")
class AddedProduct(ProductRule):
    """beta * c + alpha * (a @ b)."""

    summary = "a matrix product with squared weights, plus a term"

    def products(
        self, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
    ) -> list[Product]:
        return [[[v] for v in values_in((a, b))]]

    def squared(
        self, net: Squared, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
    ) -> Scaled:
        product = contraction(net, torch.matmul, a, b, last=self.name == "addmm").times(
            abs(alpha) ** net.order
        )
        return scaled.add(as_scaled(net, c).times(abs(beta) ** net.order), product)

    def nodes(
        self, graph: NodeGraph, c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1
    ) -> Nodes:
        return add_nodes(graph, c, matmul_nodes(graph, a, b))


@operation("einsum")
class EinsteinSum(ProductRule):
    """A sum of products over indices, at most one factor of which is values of units."""

    summary = "an Einstein sum with squared weights, at most one factor values of units"

    def rewrite(self, *args: Any) -> tuple[Any, ...]:
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        return args[0], *operands

    def squared(self, net: Squared, equation: str, *operands: Any) -> Scaled:
        parts = [as_scaled(net, x).with_one_scale() for x in operands]
        scale = torch.stack([p.log_scale for p in parts]).sum()
        return Scaled(torch.einsum(equation, *(p.mantissa for p in parts)), scale).normalized()

    def nodes(self, graph: NodeGraph, equation: str, *operands: Any) -> Nodes:
        terms, _, out = equation.replace(" ", "").partition("->")
        letters = terms.split(",")
        if "->" not in equation:
            joined = "".join(letters)
            out = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
        if len(operands) != 2 or "." in equation:
            return graph.pinned(*operands)
        return product_nodes(graph, operands[0], letters[0], operands[1], letters[1], out)

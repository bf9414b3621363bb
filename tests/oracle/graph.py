"""The paper's object itself, a network N(G, pi, p), with every quantity computed as it is defined.

    h_v     = [ sum_{e = u->v} w_e h_u ]_+    hidden unit; linear units and outputs: no [.]_+
    w_e     = p[pi(e)]                        or a fixed constant that is no parameter
    gamma^2 = sum_{z in P} prod_{e in z} w_e^2    P: all paths from inputs and biases to outputs
    kappa_i = 1/2 d^2 gamma^2 / d p_i^2 = kappa1_i + kappa2_i

One path z is one monomial, c_z^2 prod_i q_i^{m_i} with q = p^2, so that

    kappa1_i = sum_z          m_i        q_i^{m_i - 1} c_z^2 prod_{j != i} q_j^{m_j}
             = d gamma^2 / d q_i
    kappa2_i = sum_z  2 m_i (m_i - 1)    q_i^{m_i - 1} c_z^2 prod_{j != i} q_j^{m_j}
             = 2 q_i d^2 gamma^2 / d q_i^2

Glossary: u, v nodes; e edge; i, j parameters; z path; m_i how often z uses parameter i; c_z product
of the constants on z; E_i the edges that carry parameter i. Enumeration is exponential in depth:
keep networks tiny.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Path = tuple[int, ...]
"""A path, as the indices of its edges from first to last."""


@dataclass(frozen=True)
class Edge:
    """An edge source -> target whose weight is p[parameter], or else a fixed constant."""

    source: int
    target: int
    parameter: int | None = None
    constant: float | None = None

    def __post_init__(self) -> None:
        if (self.parameter is None) == (self.constant is None):
            raise ValueError(
                f"edge {self.source} -> {self.target} needs either a parameter index or a constant "
                f"weight, got parameter={self.parameter} and constant={self.constant}"
            )


@dataclass(frozen=True)
class Monomial:
    """What one path contributes: prod_{e in z} w_e = constant * prod_i p_i^powers[i]."""

    constant: float
    powers: Counter[int]

    def value(self, p: Array, lowered: int | None = None, by: int = 0) -> Any:
        """constant * prod_i p_i^{m_i}, the power of `lowered` reduced by `by` (no division)."""
        product = self.constant
        for i, power in self.powers.items():
            product = product * p[i] ** (power - by if i == lowered else power)
        return product

    def squared(self) -> Monomial:
        """The same path in the squared network, as a monomial in q = p^2."""
        return Monomial(self.constant**2, self.powers)


@dataclass(frozen=True)
class Network:
    """N(G, pi, p) without its p: numbers of nodes and parameters, edges and the roles of nodes.

    inputs, outputs, biases: node numbers, disjoint; a bias has the value 1, an output is linear.
    linear: further nodes without ReLU (sums, averages). names: one label per node, for printing.
    Vectors: p has shape (parameter_count,), x has shape (len(inputs),), results follow `outputs`.
    """

    node_count: int
    parameter_count: int
    edges: tuple[Edge, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    biases: tuple[int, ...] = ()
    linear: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_nodes()
        self._check_edges()
        if len(self.topological_order) < self.node_count:
            stuck = sorted(set(range(self.node_count)) - set(self.topological_order))
            raise ValueError(
                f"the graph has a cycle among or before nodes {stuck}; unfold recurrences over "
                "time steps"
            )

    def _check_nodes(self) -> None:
        if not self.outputs:
            raise ValueError("the network has no output nodes, so no path can end")
        roles = [*self.inputs, *self.outputs, *self.biases]
        for node in [*roles, *self.linear]:
            if not 0 <= node < self.node_count:
                raise ValueError(
                    f"node {node} is out of range: the network has {self.node_count} nodes"
                )
        repeated = sorted(node for node, count in Counter(roles).items() if count > 1)
        if repeated:
            raise ValueError(
                f"nodes {repeated} have more than one role or are listed twice as input, output or "
                "bias"
            )
        if self.names and len(self.names) != self.node_count:
            raise ValueError(f"{len(self.names)} names given for {self.node_count} nodes")

    def _check_edges(self) -> None:
        for edge in self.edges:
            for node in (edge.source, edge.target):
                if not 0 <= node < self.node_count:
                    raise ValueError(
                        f"{edge} meets node {node}, but the network has {self.node_count} nodes"
                    )
            if edge.parameter is not None and not 0 <= edge.parameter < self.parameter_count:
                raise ValueError(
                    f"{edge} uses a parameter out of range: there are {self.parameter_count}"
                )
            if edge.target in self.inputs or edge.target in self.biases:
                raise ValueError(f"{edge} enters an input or bias node, whose value is given")

    # ---- the graph -------------------------------------------------------------------------------

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For each node the indices of the edges that enter it."""
        return tuple(
            tuple(k for k, e in enumerate(self.edges) if e.target == v)
            for v in range(self.node_count)
        )

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For each node the indices of the edges that leave it."""
        return tuple(
            tuple(k for k, e in enumerate(self.edges) if e.source == v)
            for v in range(self.node_count)
        )

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        """Nodes in topological order; nodes on or behind a cycle are missing."""
        waiting_for = [len(edges) for edges in self.incoming]
        order = [v for v in range(self.node_count) if waiting_for[v] == 0]
        for node in order:  # grows while it is read
            for k in self.outgoing[node]:
                target = self.edges[k].target
                waiting_for[target] -= 1
                if waiting_for[target] == 0:
                    order.append(target)
        return tuple(order)

    def shared_edges(self, parameter: int) -> list[Edge]:
        """E_i, the edges that carry this parameter."""
        return [edge for edge in self.edges if edge.parameter == parameter]

    # ---- the function ----------------------------------------------------------------------------

    def weights(self, p: ArrayLike) -> Array:
        """w_e = p[pi(e)] or the constant of e; shape (len(edges),)."""
        p = self._parameters(p)
        return np.array(
            [e.constant if e.parameter is None else p[e.parameter] for e in self.edges],
            dtype=p.dtype,
        )

    def activations(self, p: ArrayLike, x: ArrayLike) -> Array:
        """h_v of every node; shape (node_count,)."""
        w, x = self.weights(p), np.asarray(x, dtype=np.float64)
        if x.shape != (len(self.inputs),):
            raise ValueError(f"expected an input of shape ({len(self.inputs)},), got {x.shape}")
        h = np.zeros(self.node_count)
        h[list(self.inputs)] = x
        h[list(self.biases)] = 1.0
        for v in self.topological_order:
            if v in self.inputs or v in self.biases:
                continue
            z = sum(w[k] * h[self.edges[k].source] for k in self.incoming[v])
            h[v] = z if self._is_linear(v) else max(z, 0.0)
        return h

    def forward(self, p: ArrayLike, x: ArrayLike) -> Array:
        """f_p(x): the values of the outputs; shape (len(outputs),)."""
        return self.activations(p, x)[list(self.outputs)]

    def gradient(self, p: ArrayLike, x: ArrayLike, output_gradient: ArrayLike) -> Array:
        """dL/dp_i = sum_{(u->v) in E_i} dL/dz_v h_u from dL/df (len(outputs),); z_v enters relu."""
        w, h = self.weights(p), self.activations(p, x)
        delta = np.zeros(self.node_count)
        delta[list(self.outputs)] = output_gradient
        gradient = np.zeros(self.parameter_count)
        for v in reversed(self.topological_order):
            delta[v] += sum(w[k] * delta[self.edges[k].target] for k in self.outgoing[v])
            delta[v] *= self._is_linear(v) or h[v] > 0
            for k in self.incoming[v]:
                edge = self.edges[k]
                if edge.parameter is not None:
                    gradient[edge.parameter] += delta[v] * h[edge.source]
        return gradient

    # ---- paths -----------------------------------------------------------------------------------

    def paths(self) -> Iterator[Path]:
        """Every path from an input or bias node to an output, as edge indices."""

        def onwards(node: int, so_far: Path) -> Iterator[Path]:
            if node in self.outputs:
                yield so_far
            for k in self.outgoing[node]:
                yield from onwards(self.edges[k].target, (*so_far, k))

        for start in (*self.inputs, *self.biases):
            yield from onwards(start, ())

    def describe(self, path: Path) -> str:
        """A path in words, such as 'x[0] -> h[1] -> y[0]'."""
        nodes = [self.edges[path[0]].source, *(self.edges[k].target for k in path)]
        return " -> ".join(self.names[v] if self.names else str(v) for v in nodes)

    @cached_property
    def monomials(self) -> tuple[Monomial, ...]:
        """One monomial in p for each path, in the order of `paths()`."""
        found = []
        for path in self.paths():
            on_path = [self.edges[k] for k in path]
            constant = float(np.prod([e.constant for e in on_path if e.constant is not None]))
            found.append(
                Monomial(constant, Counter(e.parameter for e in on_path if e.parameter is not None))
            )
        return tuple(found)

    # ---- the path regulariser --------------------------------------------------------------------

    def gamma_sq_by_paths(self, p: ArrayLike) -> Any:
        """gamma^2 = sum_{z in P} prod_{e in z} w_e^2, by listing the paths."""
        q = self._parameters(p) ** 2
        return sum((z.squared().value(q) for z in self.monomials), start=q.dtype.type(0))

    def gamma_sq_by_nodes(self, p: ArrayLike) -> Any:
        """gamma^2 = sum_{v out} gamma_v^2; gamma_v^2 = sum_{u->v} gamma_u^2 w_e^2, 1 at inputs."""
        return self.squared_states(p)[list(self.outputs)].sum()

    def squared_states(self, p: ArrayLike) -> Array:
        """gamma_v^2 of every node: the squared network on all-ones input; shape (node_count,)."""
        w_sq = self.weights(p) ** 2
        gamma_sq = np.zeros(self.node_count, dtype=w_sq.dtype)
        gamma_sq[[*self.inputs, *self.biases]] = 1.0
        for v in self.topological_order:
            gamma_sq[v] += sum(w_sq[k] * gamma_sq[self.edges[k].source] for k in self.incoming[v])
        return gamma_sq

    def squared_deltas(self, p: ArrayLike) -> Array:
        """d gamma^2 / d gamma_v^2: squared path sums from nodes to outputs; shape (node_count,)."""
        w_sq = self.weights(p) ** 2
        delta = np.zeros(self.node_count, dtype=w_sq.dtype)
        delta[list(self.outputs)] = 1.0
        for v in reversed(self.topological_order):
            delta[v] += sum(w_sq[k] * delta[self.edges[k].target] for k in self.outgoing[v])
        return delta

    def path_norm(self, p: ArrayLike, order: float = 2.0) -> float:
        """(sum_{z in P} prod_{e in z} |w_e|^order)^(1/order)."""
        if not order > 0:
            raise ValueError(f"the order of a path norm must be positive, got {order}")
        p = self._parameters(p)
        return float(sum(abs(z.value(p)) ** order for z in self.monomials) ** (1.0 / order))

    def path_flow(self, p: ArrayLike) -> Array:
        """Share of gamma^2 carried by the paths through each node; shape (node_count,)."""
        q = self._parameters(p) ** 2
        flow = np.zeros(self.node_count)
        for path, monomial in zip(self.paths(), self.monomials):
            through = {self.edges[path[0]].source, *(self.edges[k].target for k in path)}
            flow[list(through)] += monomial.squared().value(q)
        total = self.gamma_sq_by_paths(p)
        if total == 0:
            raise ValueError("every path has weight zero, so shares of the path mass are undefined")
        return flow / total

    # ---- kappa -----------------------------------------------------------------------------------

    def kappa1(self, p: ArrayLike) -> Array:
        """kappa1_i = sum_z m_i q_i^{m_i - 1} * (rest of z squared); shape (parameter_count,)."""
        q = self._parameters(p) ** 2
        result = np.zeros_like(q)
        for z in self.monomials:
            for i, m in z.powers.items():
                result[i] += m * z.squared().value(q, lowered=i, by=1)
        return result

    def kappa2(self, p: ArrayLike) -> Array:
        """kappa2_i = sum_z 2 m_i (m_i - 1) q_i^{m_i - 1} * (rest)^2; 0 if no path repeats p_i."""
        q = self._parameters(p) ** 2
        result = np.zeros_like(q)
        for z in self.monomials:
            for i, m in z.powers.items():
                result[i] += 2 * m * (m - 1) * z.squared().value(q, lowered=i, by=1)
        return result

    def kappa(self, p: ArrayLike) -> Array:
        """kappa_i = 1/2 d^2 gamma^2 / dp_i^2 = sum_z m_i (2 m_i - 1) p_i^{2 m_i - 2} * (rest)^2."""
        p = self._parameters(p)
        result = np.zeros_like(p)
        for z in self.monomials:
            doubled = Monomial(z.constant**2, Counter({i: 2 * m for i, m in z.powers.items()}))
            for i, m in z.powers.items():
                result[i] += m * (2 * m - 1) * doubled.value(p, lowered=i, by=2)
        return result

    # ---- checks ----------------------------------------------------------------------------------

    def _is_linear(self, node: int) -> bool:
        return (
            node in self.linear
            or node in self.outputs
            or node in self.inputs
            or node in self.biases
        )

    def _parameters(self, p: ArrayLike) -> Array:
        """p as floats (or complex numbers, which gamma^2 and kappa accept as polynomials do)."""
        array = np.asarray(p)
        if array.shape != (self.parameter_count,):
            raise ValueError(
                f"expected a parameter vector of shape ({self.parameter_count},), got {array.shape}"
            )
        array = array if np.issubdtype(array.dtype, np.inexact) else array.astype(np.float64)
        if not np.isfinite(array).all():
            raise ValueError(
                f"parameters {np.flatnonzero(~np.isfinite(array)).tolist()} are not finite"
            )
        return array

"""Feasible node-wise rescalings of a network with shared weights, as plain linear algebra.

Rescaling every unit v by alpha_v = exp(beta_v) multiplies the weight of an edge u -> v by
exp(beta_v - beta_u). It keeps the function when inputs, biases and outputs have beta = 0, and it is
feasible when all edges of E_i agree:

    beta_v - beta_u = beta_v' - beta_u'    for all u->v, u'->v' in E_i (one factor)
    beta_v - beta_u = 0                    for a constant edge u->v    (fixed weight)
    beta_v = 0                             for inputs, biases and outputs

The solutions are a linear space: the null space of these equations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .graph import Array, Edge, Network


def feasible_rescalings(network: Network) -> Array:
    """An orthonormal basis of all feasible beta = log alpha; shape (dimension, node_count).

    Theorem 1: for an RNN the dimension is the number of hidden units, for any number of time steps.
    """
    equations = _equations(network)
    _, singular_values, rows = np.linalg.svd(equations, full_matrices=True)
    tolerance = max(equations.shape) * np.finfo(np.float64).eps * singular_values[0]
    rank = int((singular_values > tolerance).sum())
    return rows[rank:]


def rescale(network: Network, p: ArrayLike, beta: ArrayLike) -> Array:
    """p_i exp(beta_v - beta_u) for (u->v) in E_i: the parameters after scaling by exp(beta)."""
    return np.asarray(p, dtype=np.float64) * np.exp(log_factors(network, beta))


def log_factors(network: Network, beta: ArrayLike) -> Array:
    """beta_v - beta_u for (u->v) in E_i, 0 for parameters without edges; (parameter_count,)."""
    beta = np.asarray(beta, dtype=np.float64)
    if beta.shape != (network.node_count,):
        raise ValueError(
            f"expected one beta a node, shape ({network.node_count},), got {beta.shape}"
        )
    violation = float(np.abs(_equations(network) @ beta).max())
    if violation > 1e-9 * max(1.0, float(np.abs(beta).max())):
        raise ValueError(
            f"this beta is no feasible rescaling (an equation is off by {violation:.1e}); "
            "combine the rows of feasible_rescalings(network)"
        )
    result = np.zeros(network.parameter_count)
    for edge in network.edges:
        if edge.parameter is not None:
            result[edge.parameter] = beta[edge.target] - beta[edge.source]
    return result


def _equations(network: Network) -> Array:
    """The matrix M with M beta = 0 exactly for the feasible beta."""
    unit = np.eye(network.node_count)

    def difference(edge: Edge) -> Array:
        return unit[edge.target] - unit[edge.source]

    rows = [unit[v] for v in (*network.inputs, *network.biases, *network.outputs)]
    rows += [difference(edge) for edge in network.edges if edge.parameter is None]
    for i in range(network.parameter_count):
        sharing = network.shared_edges(i)
        rows += [difference(edge) - difference(sharing[0]) for edge in sharing[1:]]
    return np.array(rows)

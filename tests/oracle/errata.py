"""The paper's formulas for kappa2 as printed, kept so that tests can state their errors.

Source: Neyshabur, Wu, Salakhutdinov, Srebro, "Path-Normalized Optimization of Recurrent Neural
Networks with ReLU Activations", 2016. A path that uses parameter i m_i times has C(m_i, 2) pairs of
such edges.

    exact          4 per pair    2 m (m - 1) q^{m-1} rest
    lemma          2 per pair    its sum runs over ordered pairs e1 != e2
    theorem 3      1 per pair    ordered pairs, but dh_{u'}/dh_v is zero unless v comes before u'
    footnote       1 per pair    the matrix form of theorem 3, with its index h_{t2} read as
                                 h_{t2 - 1}

So the three printed forms disagree with the derivative, by 2, 4 and 4, and with each other.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike

from .graph import Array, Network


def kappa2_lemma(network: Network, p: ArrayLike) -> Array:
    """p_i^2 sum_{e1 != e2 in E_i} sum_{z via both} prod_{e in z, not e1, e2} w_e^2; exact / 2."""
    p = np.asarray(p, dtype=np.float64)
    w_sq = network.weights(p) ** 2
    result = np.zeros(network.parameter_count)
    for path in network.paths():
        for e1, e2 in permutations(path, 2):
            i = network.edges[e1].parameter
            if i is not None and i == network.edges[e2].parameter:
                result[i] += p[i] ** 2 * np.prod([w_sq[e] for e in path if e not in (e1, e2)])
    return result


def kappa2_theorem(network: Network, p: ArrayLike) -> Array:
    """sum_{(u->v) != (u'->v') in E_i} q_i dg/dh_{v'} dh_{u'}/dh_v h_u when squared; exact / 4."""
    p = np.asarray(p, dtype=np.float64)
    h, dg, dh = network.squared_states(p), network.squared_deltas(p), _node_derivatives(network, p)
    result = np.zeros(network.parameter_count)
    for i in range(network.parameter_count):
        for first, second in permutations(network.shared_edges(i), 2):
            result[i] += (
                p[i] ** 2 * dg[second.target] * dh[second.source, first.target] * h[first.source]
            )
    return result


def kappa2_footnote(
    recurrent_sq: Array, states: Array, deltas: Array, corrected: bool = True
) -> Array:
    """W' .* sum_{t1=0}^{T-3} [(W'^t1)^T .* sum_{t2=2}^{T-t1-1} delta_{t1+t2+1} h_{t2-1}^T].

    Exact / 4. corrected=False reads h_{t2} in the last factor, as printed: this omits an edge.
    recurrent_sq: W' = W_rec^2 entry by entry, (H, H).
    states, deltas: h_t and delta_t = dg/dh_t in row t - 1, (T, H).
    """
    steps = len(states)
    total = np.zeros_like(recurrent_sq)
    for t1 in range(steps - 2):
        inner = np.zeros_like(recurrent_sq)
        for t2 in range(2, steps - t1):
            state_time = t2 - 1 if corrected else t2
            inner += np.outer(deltas[t1 + t2 + 1 - 1], states[state_time - 1])
        total += np.linalg.matrix_power(recurrent_sq, t1).T * inner
    return recurrent_sq * total


def _node_derivatives(network: Network, p: ArrayLike) -> Array:
    """dh_v/dh_u in the squared network, the path sum from u to v; (nodes, nodes), row v, col u."""
    w_sq = network.weights(p) ** 2
    derivative = np.eye(network.node_count)
    for v in network.topological_order:
        for k in network.incoming[v]:
            derivative[v] += w_sq[k] * derivative[network.edges[k].source]
    return derivative

"""The paper's definitions on an explicit graph, slow and obvious: the oracle for all other code.

graph.py      a network N(G, pi, p): forward, paths, gamma^2 twice, kappa by enumeration
rescaling.py  all feasible node-wise rescalings of such a network
build.py      the usual architectures as such networks, with torch's names and shapes
rnn.py        closed forms for a single-layer RNN
errata.py     the paper's kappa2 formulas as printed, and the error of each
ratios.py     the paper's table of ||kappa2|| / ||kappa1||:  python -m oracle.ratios

Nothing here imports any other part of the package, so that agreement with it means something.
"""

from . import build
from .build import GraphBuilder, Layout, pack, unpack
from .errata import kappa2_footnote, kappa2_lemma, kappa2_theorem
from .graph import Edge, Monomial, Network
from .rescaling import feasible_rescalings, log_factors, rescale
from .rnn import SquaredRNN

__all__ = [
    "Edge",
    "GraphBuilder",
    "Layout",
    "Monomial",
    "Network",
    "SquaredRNN",
    "build",
    "feasible_rescalings",
    "kappa2_footnote",
    "kappa2_lemma",
    "kappa2_theorem",
    "log_factors",
    "pack",
    "rescale",
    "unpack",
]

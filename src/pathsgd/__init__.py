"""pathsgd: path-normalized optimisation of ReLU networks with shared weights."""

from pathsgd import nn
from pathsgd.errors import UnsupportedOperation
from pathsgd.explain import explain
from pathsgd.invariance import check_invariance
from pathsgd.kappa import kappa
from pathsgd.nodes import balance, node_spaces, random_rescaling, rescale_nodes
from pathsgd.normalize import path_normalize_grad_
from pathsgd.optim import PathAdam, PathSGD
from pathsgd.squared import gamma_sq, log_gamma_sq, path_norm

__all__ = [
    "PathAdam",
    "PathSGD",
    "UnsupportedOperation",
    "balance",
    "check_invariance",
    "explain",
    "gamma_sq",
    "kappa",
    "log_gamma_sq",
    "nn",
    "node_spaces",
    "path_norm",
    "path_normalize_grad_",
    "random_rescaling",
    "rescale_nodes",
]

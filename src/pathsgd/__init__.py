"""pathsgd: path-normalized optimisation of ReLU networks with shared weights."""

from pathsgd.errors import UnsupportedOperation
from pathsgd.kappa import kappa
from pathsgd.nodes import balance, node_spaces, random_rescaling, rescale_nodes
from pathsgd.squared import gamma_sq, log_gamma_sq, path_norm

__all__ = [
    "UnsupportedOperation",
    "balance",
    "gamma_sq",
    "kappa",
    "log_gamma_sq",
    "node_spaces",
    "path_norm",
    "random_rescaling",
    "rescale_nodes",
]

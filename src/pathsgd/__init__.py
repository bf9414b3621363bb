"""pathsgd: path-normalized optimisation of ReLU networks with shared weights."""

from importlib.metadata import version

from pathsgd import nn, optim
from pathsgd.errors import UnsupportedOperation
from pathsgd.invariance import check_invariance
from pathsgd.metric.choice import Metric
from pathsgd.metric.gradients import path_normalize_grad_
from pathsgd.optim import PathAdam, PathMuon, PathSGD, PathSOAP
from pathsgd.paths.explain import explain
from pathsgd.paths.gamma import gamma_sq, log_gamma_sq, path_norm
from pathsgd.paths.growth import growth_rate
from pathsgd.paths.kappa import kappa, path_share
from pathsgd.paths.rescaling import balance, node_spaces, random_rescaling, rescale_nodes

__version__ = version("pathsgd")

__all__ = [
    "Metric",
    "PathAdam",
    "PathMuon",
    "PathSGD",
    "PathSOAP",
    "UnsupportedOperation",
    "balance",
    "check_invariance",
    "explain",
    "gamma_sq",
    "growth_rate",
    "kappa",
    "log_gamma_sq",
    "nn",
    "node_spaces",
    "optim",
    "path_norm",
    "path_normalize_grad_",
    "path_share",
    "random_rescaling",
    "rescale_nodes",
]

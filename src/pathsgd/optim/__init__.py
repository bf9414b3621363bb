"""Optimisers in path geometry: torch.optim classes over the metric."""

from pathsgd.metric.bounds import DualNorm
from pathsgd.optim.growth import bound_growth_
from pathsgd.optim.in_path_coordinates import InPathCoordinates
from pathsgd.optim.path_adam import PathAdam
from pathsgd.optim.path_muon import PathMuon
from pathsgd.optim.path_sgd import PathSGD
from pathsgd.optim.path_soap import PathSOAP
from pathsgd.optim.wrap import wrap

__all__ = [
    "DualNorm",
    "InPathCoordinates",
    "PathAdam",
    "PathMuon",
    "PathSGD",
    "PathSOAP",
    "bound_growth_",
    "wrap",
]

"""Optimisers in path geometry: torch.optim classes over the metric."""

from pathsgd.metric.bounds import DualNorm
from pathsgd.optim.path_adam import PathAdam
from pathsgd.optim.path_sgd import PathSGD
from pathsgd.optim.wrap import wrap

__all__ = ["DualNorm", "PathAdam", "PathSGD", "wrap"]

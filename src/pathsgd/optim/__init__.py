"""Optimisers in path geometry: thin torch.optim classes over the functions of normalize.py."""

from pathsgd.optim.path_adam import PathAdam
from pathsgd.optim.path_sgd import PathSGD
from pathsgd.optim.wrap import wrap

__all__ = ["PathAdam", "PathSGD", "wrap"]

"""pathsgd: path-normalized optimisation of ReLU networks with shared weights."""

from pathsgd.errors import UnsupportedOperation
from pathsgd.squared import gamma_sq, log_gamma_sq, path_norm

__all__ = ["UnsupportedOperation", "gamma_sq", "log_gamma_sq", "path_norm"]

"""The optimisers a run can name. A new one is one class in a file here and one line in ``OPTIMISERS``."""

from pathsgd.lab.run.optimisers.base import Optimiser, Stepper
from pathsgd.lab.run.optimisers.hessian_free import HessianFreeOptimiser
from pathsgd.lab.run.optimisers.path import (
    AbsolutePathAdamOptimiser,
    PaperPathAdamOptimiser,
    PathAdamOptimiser,
    PathSgdBothOptimiser,
    PathSgdOptimiser,
)
from pathsgd.lab.run.optimisers.readings import PaperPathSgdOptimiser
from pathsgd.lab.run.optimisers.standard import AdamOptimiser, RmsPropOptimiser, SgdOptimiser

OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SgdOptimiser,
    "adam": AdamOptimiser,
    "rmsprop": RmsPropOptimiser,
    "path-sgd": PathSgdOptimiser,
    "path-sgd-both": PathSgdBothOptimiser,
    "path-sgd-paper": PaperPathSgdOptimiser,
    "path-adam": PathAdamOptimiser,
    "path-adam-absolute": AbsolutePathAdamOptimiser,
    "path-adam-paper": PaperPathAdamOptimiser,
    "hessian-free": HessianFreeOptimiser,
}

__all__ = ["OPTIMISERS", "Optimiser", "Stepper"]

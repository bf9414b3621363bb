"""The optimisers a run can name. A new one is one class in a file here and one line in ``OPTIMISERS``."""

from pathsgd_lab.run.optimisers.base import Optimiser, Stepper
from pathsgd_lab.run.optimisers.capped import CappedPathAdamOptimiser
from pathsgd_lab.run.optimisers.caps import CappedAdamOptimiser
from pathsgd_lab.run.optimisers.g_sgd import GSgdOptimiser
from pathsgd_lab.run.optimisers.hessian_free import HessianFreeOptimiser
from pathsgd_lab.run.optimisers.in_path import InPathOptimiser
from pathsgd_lab.run.optimisers.path import (
    AbsolutePathAdamOptimiser,
    AbsolutePathSgdOptimiser,
    PaperPathAdamOptimiser,
    PathAdamOptimiser,
    PathSgdBothOptimiser,
    PathSgdOptimiser,
)
from pathsgd_lab.run.optimisers.readings import PaperPathSgdOptimiser
from pathsgd_lab.run.optimisers.rivals import (
    AdamWOptimiser,
    LionOptimiser,
    MomentumOptimiser,
    MuonOptimiser,
    NAdamOptimiser,
    ProdigyOptimiser,
    ScheduleFreeOptimiser,
    SoapOptimiser,
)
from pathsgd_lab.run.optimisers.standard import (
    AdamOptimiser,
    RmsPropOptimiser,
    SgdOptimiser,
    StepBoundAdamOptimiser,
)

OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SgdOptimiser,
    "adam": AdamOptimiser,
    "adam-capped": CappedAdamOptimiser,
    "rmsprop": RmsPropOptimiser,
    "path-sgd": PathSgdOptimiser,
    "path-sgd-absolute": AbsolutePathSgdOptimiser,
    "path-sgd-both": PathSgdBothOptimiser,
    "path-sgd-paper": PaperPathSgdOptimiser,
    "path-adam": PathAdamOptimiser,
    "path-adam-absolute": AbsolutePathAdamOptimiser,
    "path-adam-capped": CappedPathAdamOptimiser,
    "path-adam-paper": PaperPathAdamOptimiser,
    "in-path": InPathOptimiser,
    "hessian-free": HessianFreeOptimiser,
    "momentum": MomentumOptimiser,
    "adamw": AdamWOptimiser,
    "nadam": NAdamOptimiser,
    "muon": MuonOptimiser,
    "soap": SoapOptimiser,
    "lion": LionOptimiser,
    "schedule-free": ScheduleFreeOptimiser,
    "prodigy": ProdigyOptimiser,
    "g-sgd": GSgdOptimiser,
    "adam-step-bound": StepBoundAdamOptimiser,
}

__all__ = ["OPTIMISERS", "Optimiser", "Stepper"]

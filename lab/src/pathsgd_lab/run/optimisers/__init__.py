"""The optimisers a run can name; a new one is one class in a file here and one line below.

An optimiser for one study is in the study's folder; the study registers it when it is loaded.
"""

from pathsgd_lab.run.optimisers.base import Optimiser, Stepper
from pathsgd_lab.run.optimisers.hessian_free import HessianFreeOptimiser
from pathsgd_lab.run.optimisers.in_path import InPathOptimiser
from pathsgd_lab.run.optimisers.path import (
    AbsolutePathSgdOptimiser,
    PaperPathAdamOptimiser,
    PathAdamOptimiser,
    PathSgdBothOptimiser,
    PathSgdOptimiser,
    RelativePathAdamOptimiser,
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
)

OPTIMISERS: dict[str, type[Optimiser]] = {
    "sgd": SgdOptimiser,
    "adam": AdamOptimiser,
    "rmsprop": RmsPropOptimiser,
    "path-sgd": PathSgdOptimiser,
    "path-sgd-absolute": AbsolutePathSgdOptimiser,
    "path-sgd-both": PathSgdBothOptimiser,
    "path-sgd-paper": PaperPathSgdOptimiser,
    "path-adam": PathAdamOptimiser,
    "path-adam-relative": RelativePathAdamOptimiser,
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
}

__all__ = ["OPTIMISERS", "Optimiser", "Stepper"]

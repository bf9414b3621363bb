"""The systems of the paper's tables and a few more nets, listed here by name.

A system is a frozen dataclass of settings (``IrnnSystem(hidden=100)``)::

    system = SYSTEMS["irnn"]()
    model = system.build(task, seed=0)      # nn.Module: (inputs, state=None) -> (outputs, state)
    losses = system.losses(model, task, batch, state)       # objective (with penalty), loss, state
    losses.objective.backward()
    state = detach_state(losses.state)

A new system is one class and its name in ``SYSTEMS``.  ``system.optimiser`` names the optimiser
to use by default; "hessian-free" is ``HessianFree``, whose ``step`` takes the batch itself instead
of gradients.
"""

from pathsgd_lab.systems.base import Losses, SequenceNet, System
from pathsgd_lab.systems.ctrnn import CtrnnSystem
from pathsgd_lab.systems.feed_forward import AutoencoderSystem, CnnSystem, MlpSystem
from pathsgd_lab.systems.gated import GruSystem, LstmSystem
from pathsgd_lab.systems.mrnn_hf import MrnnHfSystem
from pathsgd_lab.systems.norm_stabilizer import NormStabilizerSystem
from pathsgd_lab.systems.plain import (
    IrnnSystem,
    NpRnnSystem,
    OrthogonalRnnSystem,
    RecurrentNet,
    RnnPathSystem,
    RnnReluSystem,
    RnnTanhSystem,
)  # fmt: skip
from pathsgd_lab.systems.smooth_relu import SmoothReluSystem
from pathsgd_lab.systems.urnn import UrnnSystem

SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        RnnPathSystem, RnnReluSystem, RnnTanhSystem, IrnnSystem, NpRnnSystem, OrthogonalRnnSystem,
        UrnnSystem, LstmSystem, GruSystem, NormStabilizerSystem, SmoothReluSystem, MrnnHfSystem,
        CtrnnSystem, MlpSystem, AutoencoderSystem, CnnSystem,
    )
}  # fmt: skip

__all__ = [
    "SYSTEMS", "AutoencoderSystem", "CnnSystem", "CtrnnSystem", "GruSystem", "IrnnSystem", "Losses",
    "LstmSystem", "MlpSystem", "MrnnHfSystem", "NormStabilizerSystem", "NpRnnSystem",
    "OrthogonalRnnSystem", "RecurrentNet", "RnnPathSystem", "RnnReluSystem", "RnnTanhSystem",
    "SequenceNet", "SmoothReluSystem", "System", "UrnnSystem",
]  # fmt: skip

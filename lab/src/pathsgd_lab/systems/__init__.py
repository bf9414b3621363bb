"""The systems of the paper's tables and a few more nets: one file each, listed here by name.

A system is a frozen dataclass of settings (``IrnnSystem(hidden=100)``)::

    system = SYSTEMS["irnn"]()
    model = system.build(task, seed=0)      # nn.Module: (inputs, state=None) -> (outputs, state)
    losses = system.losses(model, task, batch, state)       # objective (with penalty), loss, state
    losses.objective.backward()
    state = detach_state(losses.state)

A new system is one new file and one line in ``SYSTEMS``.  ``system.optimiser`` names the optimiser
to use by default; "hessian-free" is ``HessianFree``, whose ``step`` takes the batch itself instead
of gradients.
"""

from pathsgd_lab.systems.base import Losses, SequenceNet, System
from pathsgd_lab.systems.ctrnn import CtrnnSystem
from pathsgd_lab.systems.feed_forward import AutoencoderSystem, CnnSystem, MlpSystem
from pathsgd_lab.systems.gru import GruSystem
from pathsgd_lab.systems.irnn import IrnnSystem
from pathsgd_lab.systems.lstm import LstmSystem
from pathsgd_lab.systems.mrnn_hf import MrnnHfSystem
from pathsgd_lab.systems.norm_stabilizer import NormStabilizerSystem
from pathsgd_lab.systems.np_rnn import NpRnnSystem
from pathsgd_lab.systems.orthogonal_rnn import OrthogonalRnnSystem
from pathsgd_lab.systems.plain import RecurrentNet
from pathsgd_lab.systems.rnn_path import RnnPathSystem
from pathsgd_lab.systems.rnn_relu import RnnReluSystem
from pathsgd_lab.systems.rnn_tanh import RnnTanhSystem
from pathsgd_lab.systems.smooth_relu import SmoothReluSystem
from pathsgd_lab.systems.urnn import UrnnSystem

SYSTEMS: dict[str, type[System]] = {
    "rnn_path": RnnPathSystem,
    "rnn_relu": RnnReluSystem,
    "rnn_tanh": RnnTanhSystem,
    "irnn": IrnnSystem,
    "np_rnn": NpRnnSystem,
    "orthogonal_rnn": OrthogonalRnnSystem,
    "urnn": UrnnSystem,
    "lstm": LstmSystem,
    "gru": GruSystem,
    "norm_stabilizer": NormStabilizerSystem,
    "smooth_relu": SmoothReluSystem,
    "mrnn_hf": MrnnHfSystem,
    "ctrnn": CtrnnSystem,
    "mlp": MlpSystem,
    "autoencoder": AutoencoderSystem,
    "cnn": CnnSystem,
}

__all__ = [
    "SYSTEMS",
    "AutoencoderSystem",
    "CnnSystem",
    "CtrnnSystem",
    "GruSystem",
    "IrnnSystem",
    "Losses",
    "LstmSystem",
    "MlpSystem",
    "MrnnHfSystem",
    "NormStabilizerSystem",
    "NpRnnSystem",
    "OrthogonalRnnSystem",
    "RecurrentNet",
    "RnnPathSystem",
    "RnnReluSystem",
    "RnnTanhSystem",
    "SequenceNet",
    "SmoothReluSystem",
    "System",
    "UrnnSystem",
]

"""RNN with a penalty on the change of the hidden state's norm (Krueger and Memisevic, 2015).

penalty = beta / T * sum_{t=1..T} (|h_t| - |h_{t-1}|)^2,   averaged over the batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pathsgd_lab.systems.base import Losses, SequenceNet
from pathsgd_lab.systems.plain import PlainSystem, Recurrent
from pathsgd_lab.tasks.base import Batch, State, Task


@dataclass(frozen=True)
class NormStabilizerSystem(PlainSystem):
    """Plain ReLU net from the identity, with a penalty on changes of |h_t|.

    Follows Krueger and Memisevic (2015): the penalty, beta = 500, and a recurrent matrix that
    starts from the identity.
    Deviates: the figure that Neyshabur et al. (2016) quote is of a rectifier with a threshold
    ("TRec"); here it is the ordinary one.  Input and output weights start as for RNN-ReLU, with
    Adam.  With a carried state, h_0 is the last state of the previous window.
    """

    name: ClassVar[str] = "norm_stabilizer"
    title: ClassVar[str] = "RNN + norm stabiliser"
    path_rules: ClassVar[bool] = True

    recurrent: Recurrent = "identity"
    """Initial recurrent matrix."""
    beta: float = 500.0
    """Weight of the penalty."""

    def penalty(self, hidden: Tensor, initial: Tensor | None = None) -> Tensor:
        """The penalty of hidden states (T, B, H) that followed ``initial`` (B, H), zero if None."""
        norms = torch.linalg.vector_norm(hidden, dim=-1)
        before = (
            torch.zeros_like(norms[0])
            if initial is None
            else torch.linalg.vector_norm(initial, dim=-1)
        )
        return self.beta * torch.diff(norms, dim=0, prepend=before.unsqueeze(0)).square().mean()

    def losses(self, model: SequenceNet, task: Task, batch: Batch, state: State | None) -> Losses:
        """Loss, and loss + penalty."""
        initial = None if state is None else state[0]
        outputs, state, hidden = model.forward_with_hidden(batch.inputs, state)
        loss = task.loss(outputs, batch.targets)
        return Losses(loss + self.penalty(hidden, initial), loss, state)

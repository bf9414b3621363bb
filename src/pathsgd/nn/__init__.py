"""A fused drop-in ReLU RNN, a chunked output loss, initialisers, carried states.

>>> import torch, pathsgd.nn
>>> model = pathsgd.nn.fuse(torch.nn.Sequential(torch.nn.RNN(2, 100, nonlinearity="relu")))
>>> type(model[0])
<class 'pathsgd.nn.rnn.RNN'>
"""

from pathsgd.kernels.native import Backend, load
from pathsgd.nn import functional, init
from pathsgd.nn.loss import linear_cross_entropy
from pathsgd.nn.rnn import RNN, fuse, unfuse
from pathsgd.nn.state import carried

__all__ = [
    "RNN",
    "Backend",
    "backend",
    "carried",
    "functional",
    "fuse",
    "init",
    "linear_cross_entropy",
    "unfuse",
]


def backend() -> Backend:
    """What computes the fused operations in this process, and why.

    `print(pathsgd.nn.backend())`.
    """
    return load().backend

"""The task of every example here: the mean of a sequence of numbers, by a plain ReLU RNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, hidden, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.head(states[:, -1])


def sequences(count: int = 512, length: int = 12, seed: int = 0) -> TensorDataset:
    x = torch.rand(count, length, 1, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.mean(1))

"""Small recurrent nets with gradients, for the tests of the metric."""

import torch
from torch import nn


def rnn(seed=0, layers=1, dtype=torch.float64):
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 4, layers, nonlinearity="relu", batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    return Net().to(dtype), torch.randn(3, 5, 2, dtype=dtype)


def gradients(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}

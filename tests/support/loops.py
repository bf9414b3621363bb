"""One recurrent map in many spellings."""

from __future__ import annotations

import torch
from torch import nn

UNITS = 5
LEAKS = torch.tensor([0.5, 0.25, 0.25, 0.125, 1.0])
A = 0.2


class Loop(nn.Module):
    """h <- body(self, h, what enters), read out at the end."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.enter, self.hidden, self.read = (
            nn.Linear(2, UNITS),
            nn.Linear(UNITS, UNITS),
            nn.Linear(UNITS, 1),
        )
        self.cell = nn.RNNCell(2, UNITS, nonlinearity="relu")
        self.matrix = nn.Parameter(torch.randn(UNITS, UNITS) / 2)
        self.factor = nn.Parameter(torch.ones(UNITS))

    def forward(self, x):
        h = torch.zeros(x.shape[1], UNITS, dtype=x.dtype)
        for u in x:
            h = self.body(self, h, u if self.body is cell else self.enter(u))
        return self.read(h)


class Layers(nn.Module):
    """nn.RNN and a linear output at the last step."""

    def __init__(self, **options):
        super().__init__()
        self.rnn = nn.RNN(2, UNITS, nonlinearity="relu", **options)
        self.out = nn.Linear(UNITS * (2 if options.get("bidirectional") else 1), 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][-1])


class Stack(nn.Module):
    """One layer, applied several times."""

    def __init__(self, depth):
        super().__init__()
        self.depth = depth
        self.first, self.tied, self.last = (
            nn.Linear(2, UNITS),
            nn.Linear(UNITS, UNITS),
            nn.Linear(UNITS, 1),
        )

    def forward(self, x):
        x = torch.relu(self.first(x))
        for _ in range(self.depth):
            x = torch.relu(self.tied(x))
        return self.last(x)


def cell(m, h, u):
    return m.cell(u, h)


LOOPS = {  # body, and: name, transposed, inside, keep, gain
    "a cell": (cell, ("cell.weight_hh", False, False, 0, 1)),
    "a layer": (lambda m, h, u: torch.relu(m.hidden(h) + u), ("hidden.weight", False, False, 0, 1)),
    "h V": (lambda m, h, u: (h @ m.matrix + u).relu(), ("matrix", True, False, 0, 1)),
    "h W^T": (lambda m, h, u: (h @ m.matrix.t() + u).clamp(min=0), ("matrix", False, False, 0, 1)),
    "addmm": (lambda m, h, u: torch.addmm(u, h, m.matrix).relu(), ("matrix", True, False, 0, 1)),
    "leaky": (
        lambda m, h, u: (1 - A) * h + A * torch.relu(m.hidden(h) + u),
        ("hidden.weight", False, False, 1 - A, A),
    ),
    "leaky, as a difference": (
        lambda m, h, u: h + A * (-h + torch.relu(m.hidden(h) + u)),
        ("hidden.weight", False, False, 1 - A, A),
    ),
    "leaky inside": (
        lambda m, h, u: torch.relu((1 - A) * h + A * (m.hidden(h) + u)),
        ("hidden.weight", False, True, 1 - A, A),
    ),
    "leaky inside, as a difference": (
        lambda m, h, u: torch.relu(h + (m.hidden(h) + u - h) / 5),
        ("hidden.weight", False, True, 1 - A, A),
    ),
    "a leak for each unit": (
        lambda m, h, u: (1 - LEAKS) * h + LEAKS * torch.relu(m.hidden(h) + u),
        ("hidden.weight", False, False, 1 - LEAKS, LEAKS),
    ),
    "residual": (
        lambda m, h, u: h + torch.relu(m.hidden(h) + u),
        ("hidden.weight", False, False, 1, 1),
    ),
}

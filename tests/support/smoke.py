"""A first run of an installed package: a kernel is there, and a step is taken. Needs nothing but the package."""

from importlib.metadata import version

import torch
from torch import nn

import pathsgd

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = pathsgd.PathAdam(model)
before = model[0].weight.detach().clone()
model(torch.rand(3, 4)).square().mean().backward()
optimizer.step()
assert not torch.equal(before, model[0].weight)
backend = pathsgd.nn.backend()
assert backend.name != "torch", f"the wheel holds no kernel that works here: {backend}"
print(pathsgd.__file__, version("pathsgd"), backend)

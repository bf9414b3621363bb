"""A gradient that its owner has let go is gone."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import pathsgd


@pytest.mark.parametrize("name", ["PathSGD", "PathAdam"])
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("strided", [False, True])
def test_zero_grad_frees_the_gradients(name: str, finite: bool, strided: bool) -> None:
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(5, 3)
    optimizer = getattr(pathsgd, name)(net, 1e-2)
    for _ in range(2):
        net(x).sum().mul(1.0 if finite else float("inf")).backward()
        if strided:
            for p in net.parameters():
                p.grad = torch.stack([p.grad, p.grad], -1)[..., 0]
        gradients = [weakref.ref(p.grad) for p in net.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        assert all(gradient() is None for gradient in gradients)

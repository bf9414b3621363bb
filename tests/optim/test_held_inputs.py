"""An optimiser holds shapes of the last inputs, not the inputs; equal shapes are looked at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pathsgd


class Masked(nn.Module):
    """A mask is structure, numbers are not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = torch.relu(self.one(x))
        return self.two(h if mask is None else h.masked_fill(mask, 0.0))


def step(model: nn.Module, optimizer: pathsgd.PathSGD, *inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(*inputs).sum().backward()
    optimizer.step()


def test_equal_shapes_are_held_once() -> None:
    model = Masked()
    optimizer = pathsgd.PathSGD(model, 1e-3)
    step(model, optimizer, torch.rand(2, 3))
    held = optimizer._last.get()
    assert held.args[0].stride() == (0, 0)
    step(model, optimizer, torch.rand(2, 3))
    assert optimizer._last.get() is held


def test_other_shapes_types_and_structure_are_not() -> None:
    model = Masked()
    optimizer = pathsgd.PathSGD(model, 1e-3)
    step(model, optimizer, torch.rand(2, 3))
    held = optimizer._last.get()
    step(model, optimizer, torch.rand(5, 3))
    assert optimizer._last.get() is not held and optimizer.inputs()[0].shape == (5, 3)
    model.double()
    step(model, optimizer, torch.rand(5, 3, dtype=torch.float64))
    assert optimizer.inputs()[0].dtype is torch.float64
    mask = torch.tensor([True, False, False, True])
    step(model, optimizer, torch.rand(5, 3, dtype=torch.float64), mask)
    assert torch.equal(optimizer.inputs()[1], mask)
    step(model, optimizer, torch.rand(5, 3, dtype=torch.float64), ~mask)
    assert torch.equal(optimizer.inputs()[1], ~mask)

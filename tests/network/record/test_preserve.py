"""Measuring changes nothing, even if it raises: parameters, buffers, modes, gradients, RNG."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import pathsgd
from support import models
from support.cases import CASES
from support.snapshots import assert_unchanged, snapshot


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", list(CASES))
def test_every_case_is_left_as_found(name: str, training: bool) -> None:
    case = CASES[name]
    model, inputs = case.build(name).train(training), case.examples()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    values = [x.clone() for x in inputs]
    before = snapshot(model)
    pathsgd.kappa(model, *inputs, terms="both", samples=1, generator=torch.Generator())
    pathsgd.node_spaces(model, *inputs)
    assert_unchanged(before, model)
    assert all(torch.equal(x, value) for x, value in zip(inputs, values))


class Busy(nn.Module):
    """Changes everything it can reach, then fails if asked to."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.zeros(3))
        self.calls, self.history, self.log = (
            0,
            [],
            {"calls": [], "recent": deque(maxlen=2), "kinds": set()},
        )
        self.plain, self.end = torch.zeros(2), end

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(x)
        self.log["calls"].append(self.calls)
        self.log["recent"].append(x)
        self.log["kinds"].add(type(x))
        self.last = x
        self.seen += 1
        self.plain.add_(torch.rand(2))
        self.seen = self.seen * 2
        self.eval()
        y = self.norm(self.layer(x))
        if self.end == "unsupported":
            return torch.tanh(y)
        if self.end == "error":
            raise KeyError("an error of the model's own")
        return y


@pytest.mark.parametrize("end", ["well", "unsupported", "error"])
def test_a_forward_pass_with_side_effects_is_undone(end: str) -> None:
    model = Busy(end).train()
    x = torch.rand(3, 2)
    before, plain = snapshot(model), model.plain.clone()
    if end == "well":
        pathsgd.gamma_sq(model, x)
    else:
        with pytest.raises(pathsgd.UnsupportedOperation if end == "unsupported" else ValueError):
            pathsgd.gamma_sq(model, x)
    assert_unchanged(before, model)
    assert torch.equal(model.plain, plain)


def test_hooks_run_and_stay() -> None:
    """Hooks may be part of the computation (pruning, weight norm): they run, and exactly once."""
    model = models.mlp([2, 3, 1])
    prune.l1_unstructured(model[0], "weight", amount=2)
    x = torch.rand(1, 2)
    before = snapshot(model)
    masked = model[0].weight_orig.detach() * model[0].weight_mask
    expected = (model[2].weight.double() ** 2 @ (masked.double() ** 2).sum(1)).sum()
    expected += (
        model[2].weight.double() ** 2 @ model[0].bias.double() ** 2 + model[2].bias.double() ** 2
    ).sum()
    torch.testing.assert_close(pathsgd.gamma_sq(model, x), expected.detach())
    assert_unchanged(before, model)


def test_grad_mode_and_inference_mode_do_not_matter() -> None:
    model, x = models.mlp([2, 3, 1]).double(), torch.rand(1, 2, dtype=torch.float64)
    expected = pathsgd.kappa(model, x, terms="both")
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            found = pathsgd.kappa(model, x, terms="both")
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_model_whose_own_object_keeps_an_activation_can_be_copied() -> None:
    """As policies do that hold the distribution of their last action."""

    class Keeper:
        last: torch.Tensor | None = None

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.keeper = nn.Linear(3, 2), Keeper()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.keeper.last = self.net(x).relu()
            return self.keeper.last

    policy, x = Policy(), torch.rand(4, 3)
    assert pathsgd.gamma_sq(policy, x) > 0
    twin = copy.deepcopy(policy)
    torch.testing.assert_close(twin(x), policy(x))
    assert type(copy.deepcopy(twin.keeper.last.detach())) is torch.Tensor

"""PathSOAP and PathMuon on another device: the CPU's steps; a captured step between new bases."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from devices.test_capturable import Captured, backward, rate
from devices.test_steps import MODELS, assert_same, train
from pathsgd import PathMuon, PathSOAP
from support.device import DEVICE, counting, to_cpu

EVERY = 4
OPTIMIZERS: dict[str, Callable[..., PathSOAP | PathMuon]] = {
    "PathSOAP": lambda m, lr=1e-2, **k: PathSOAP(
        m, lr, **{"precondition_frequency": EVERY, "max_dim": 6, **k}
    ),
    "PathSOAP, decay, up": lambda m, lr=1e-3, **k: PathSOAP(
        m, lr, weight_decay=0.1, maximize=True, sides="smaller", **k
    ),
    "PathSOAP, no bounds": lambda m, lr=1e-3, **k: PathSOAP(
        m, lr, clip=None, growth=None, max_dim=6, **k
    ),
    "PathMuon": lambda m, lr=1e-2, **k: PathMuon(m, lr, **k),
    "PathMuon, heads by Adam": lambda m, lr=1e-2, **k: PathMuon(
        m,
        lr,
        params=[
            {"params": [p], "use_muon": index % 2 == 0} for index, p in enumerate(m.parameters())
        ],
        **k,
    ),
}


def pair(name: str) -> tuple[nn.Module, Tensor, nn.Module, Tensor]:
    """In float64: on a device, Newton-Schulz of single precision runs in bfloat16."""
    torch.manual_seed(1)
    model, x = MODELS[name][0]().double(), MODELS[name][1]()
    x = x.double() if x.is_floating_point() else x
    return model, x, copy.deepcopy(model).to(DEVICE), x.to(DEVICE)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "cnn", "batch norm", "rnn", "tied words"])
def test_steps_are_those_of_the_cpu(name: str, optimizer: str) -> None:
    model, x, there, x_there = pair(name)
    before = copy.deepcopy(model)
    here_opt = OPTIMIZERS[optimizer](model, refresh_every=3)
    there_opt = OPTIMIZERS[optimizer](there, refresh_every=3)
    train(model, here_opt, x, 8)
    counts = train(there, there_opt, x_there, 8)
    assert any(not torch.equal(p, q) for p, q in zip(before.parameters(), model.parameters()))
    assert_same(model, there)
    assert [counts[i].syncs for i in (1, 2, 4, 5, 7)] == [0] * 5, counts[1].waits


@pytest.mark.parametrize("optimizer", ["PathSOAP", "PathMuon"])
@pytest.mark.parametrize("bad_at", [0, 3])
def test_a_gradient_that_is_not_finite_moves_nothing(optimizer: str, bad_at: int) -> None:
    model, x, there, x_there = pair("rnn")
    here_opt, there_opt = OPTIMIZERS[optimizer](model), OPTIMIZERS[optimizer](there)
    for m, o, inputs in ((model, here_opt, x), (there, there_opt, x_there)):
        for step in range(8):
            backward(m, inputs, step)
            if step == bad_at:
                next(iter(m.parameters())).grad[0, 0] = math.inf
            before = to_cpu(copy.deepcopy(list(m.parameters())))
            o.step()
            if step == bad_at:
                after = to_cpu(list(m.parameters()))
                assert all(torch.equal(p.detach(), q.detach()) for p, q in zip(before, after))
    assert_same(model, there)
    steps: list[Any] = [
        {s["step"] for s in o.state_dict()["state"].values() if "step" in s}
        for o in (here_opt, there_opt)
    ]
    assert steps[0] == steps[1] == {7}


@pytest.mark.parametrize("optimizer", ["PathSOAP", "PathMuon", "PathMuon, heads by Adam"])
@pytest.mark.parametrize("name", ["mlp", "rnn", "cnn"])
def test_a_captured_step_is_the_step(name: str, optimizer: str) -> None:
    """Steps that the host takes measure and update all bases, replayed ones do neither."""
    model, x, there, x_there = pair(name)
    lr = torch.tensor(rate(0)).to(DEVICE)
    here_opt = OPTIMIZERS[optimizer](model, rate(0), refresh_every=EVERY)
    # Not staggered.
    here_opt.plan.rule.arrange = lambda *_: None  # type: ignore[method-assign]
    there_opt = OPTIMIZERS[optimizer](there, lr, capturable=True)
    graph = None
    for step in range(3 * EVERY):
        backward(model, x, step)
        for group in here_opt.param_groups:
            group["lr"] = rate(step)
        here_opt.step()
        backward(there, x_there, step)
        lr.copy_(torch.tensor(rate(step)))
        if step % EVERY == 0:
            there_opt.step()
        elif graph is None:
            with Captured() as graph, counting() as counts:
                there_opt.step()
            assert counts.syncs == 0, counts.waits
        else:
            graph.replay()
    assert_same(model, there)


@pytest.mark.parametrize("optimizer", ["PathSOAP", "PathMuon"])
@pytest.mark.parametrize("first", [False, True])
def test_a_state_goes_to_capturable_steps_and_back(optimizer: str, first: bool) -> None:
    """One update of the bases a step: then both kinds of steps are the same."""
    options = {"precondition_frequency": 1} if optimizer == "PathSOAP" else {}
    model, x, there, x_there = pair("mlp")
    here_opt = OPTIMIZERS[optimizer](model, **options)
    train(model, here_opt, x, 8)
    saved: dict[str, Any] | None = None
    for capturable, steps in ((first, range(4)), (not first, range(4, 8))):
        made = OPTIMIZERS[optimizer](there, capturable=capturable, **options)
        if saved is not None:
            made.load_state_dict(saved)
        for step in steps:
            made.zero_grad()
            (there(x_there) * (1 + step)).square().mean().backward()
            made.step()
        saved = copy.deepcopy(made.state_dict())
    assert_same(model, there)


@pytest.mark.parametrize("optimizer", ["PathSOAP", "PathMuon"])
def test_on_the_cpu_there_is_nothing_to_capture(optimizer: str) -> None:
    model, x, _, _ = pair("mlp")
    made = OPTIMIZERS[optimizer](model, capturable=True)
    backward(model, x, 0)
    with pytest.raises(ValueError, match="capturable=True"):
        made.step()

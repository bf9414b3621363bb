"""The paper's rule with a unit and a bound, against its definition in plain torch."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd import PathAdam, PathSGD, path_normalize_grad_
from pathsgd.optim import DualNorm, wrap

LAYERS = (3, 6, 5, 2)
CLIPS: list[Any] = [None, 0.2, DualNorm(0.2)]


def make_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).double()


def make_rnn(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(2, 4, nonlinearity="relu")
            self.out = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0][-1])

    return Net().double()


def batches(shape: tuple[int, ...], seed: int = 1) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.rand(shape, generator=generator, dtype=torch.float64)


def net_paths(q: dict[str, Tensor]) -> Tensor:
    """gamma^2 of `make_net` as a function of the squared parameters."""
    h = torch.ones(LAYERS[0], dtype=torch.float64)
    for index in range(len(LAYERS) - 1):
        h = q[f"{2 * index}.weight"] @ h + q[f"{2 * index}.bias"]
    return h.sum()


def rnn_paths(q: dict[str, Tensor]) -> Tensor:
    """gamma^2 of `make_rnn` over five steps."""
    h = torch.zeros(4, dtype=torch.float64)
    for _ in range(5):
        h = (
            q["rnn.weight_ih_l0"].sum(1)
            + q["rnn.bias_ih_l0"]
            + q["rnn.bias_hh_l0"]
            + q["rnn.weight_hh_l0"] @ h
        )
    return (q["out.weight"] @ h + q["out.bias"]).sum()


MODELS: dict[str, Any] = {
    "net": (make_net, (7, LAYERS[0]), net_paths),
    "rnn": (make_rnn, (5, 7, 2), rnn_paths),
}


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - 1.0).square().mean()


def kappa_of(model: nn.Module, paths: Any) -> dict[str, Tensor]:
    q = {name: p.detach().square().requires_grad_() for name, p in model.named_parameters()}
    return dict(zip(q, torch.autograd.grad(paths(q), list(q.values())), strict=True))


class Oracle:
    """The rule in plain torch: one model, its own constant and momentum."""

    def __init__(
        self, model: nn.Module, paths: Any, lr: float, scale: str, clip: Any, momentum: float
    ) -> None:
        self.model, self.paths, self.lr, self.clip, self.momentum = model, paths, lr, clip, momentum
        self.constant = 1.0 if scale == "kappa" else None
        self.velocity: dict[str, Tensor] = {}

    def direction(self, x: Tensor) -> dict[str, Tensor]:
        kappa = kappa_of(self.model, self.paths)
        names = [name for name, _ in self.model.named_parameters()]
        gradients = torch.autograd.grad(loss_of(self.model, x), list(self.model.parameters()))
        raw = {name: g / kappa[name] for name, g in zip(names, gradients, strict=True)}
        if self.constant is None:
            ratio = torch.cat([g.reshape(-1) for g in gradients]).norm()
            self.constant = float(ratio / torch.cat([d.reshape(-1) for d in raw.values()]).norm())
        found = {name: self.constant * d for name, d in raw.items()}
        if isinstance(self.clip, DualNorm):
            dual = math.sqrt(
                sum(
                    float((g * found[name]).sum()) for name, g in zip(names, gradients, strict=True)
                )
            )
            return {name: d * min(1.0, self.clip.limit / dual) for name, d in found.items()}
        if self.clip is not None:
            long = math.sqrt(sum(float(d.square().sum()) for d in found.values()))
            return {name: d * min(1.0, self.clip / long) for name, d in found.items()}
        return found

    def step(self, x: Tensor) -> None:
        """Momentum lives in path coordinates, which kappa stretches by its root."""
        roots = {name: k.sqrt() for name, k in kappa_of(self.model, self.paths).items()}
        for name, d in self.direction(x).items():
            self.velocity[name] = self.momentum * self.velocity.get(name, 0.0) + d * roots[name]
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                p.sub_(self.lr * self.velocity[name] / roots[name])


def assert_same(model: nn.Module, other: nn.Module) -> None:
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            p, q, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("scale", ["kappa", "sgd"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_the_oracles(name: str, scale: Any, clip: Any, momentum: float) -> None:
    make, shape, paths = MODELS[name]
    lr = 0.1 if scale == "sgd" or clip is not None else 1e-3
    model, other = make(), make()
    optimizer = PathSGD(model, lr, momentum, metric="paper", scale=scale, clip=clip)
    oracle = Oracle(other, paths, lr, scale, clip, momentum)
    stream = batches(shape)
    for _ in range(6):
        x = next(stream)
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        oracle.step(x)
        assert_same(model, other)
    if scale == "sgd":
        assert optimizer.param_groups[0]["constant"] == pytest.approx(oracle.constant, rel=1e-9)


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("scale", ["kappa", "sgd"])
def test_wrapped_sgd_makes_the_same_steps(scale: Any, clip: Any) -> None:
    model, other = make_net(), make_net()
    lr = 0.1 if scale == "sgd" or clip is not None else 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr)
    handle = wrap(optimizer, model, scale=scale, clip=clip)
    oracle = Oracle(other, net_paths, lr, scale, clip, 0.0)
    stream = batches((7, LAYERS[0]))
    for _ in range(4):
        x = next(stream)
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
        oracle.step(x)
        assert_same(model, other)
    kept = optimizer.state_dict()["param_groups"][0]
    assert kept.get("path_constant") == (
        None if scale == "kappa" else pytest.approx(oracle.constant)
    )
    handle.remove()


def test_a_gradient_in_place_takes_the_constant_as_a_number_or_its_own() -> None:
    x = next(batches((7, LAYERS[0])))
    oracle = Oracle(make_net(), net_paths, 1.0, "sgd", None, 0.0)
    expected = oracle.direction(x)
    for scale in ("sgd", oracle.constant):
        model = make_net()
        loss_of(model, x).backward()
        path_normalize_grad_(model, x, scale=scale)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-9, atol=1e-14)


def test_the_bound_is_on_the_length_and_rescaling_changes_it() -> None:
    x = next(batches((7, LAYERS[0])))
    steps = []
    for factor in (1.0, 10.0):
        model = make_net()
        with torch.no_grad():
            model[0].weight.mul_(factor), model[0].bias.mul_(factor), model[2].weight.div_(factor)
        loss_of(model, x).backward()
        path_normalize_grad_(model, x, clip=1e-3)
        length = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()  # type: ignore[union-attr]
        assert float(length) == pytest.approx(1e-3)
        steps.append(model[0].weight.grad / factor)  # type: ignore[operator]
    assert not torch.allclose(steps[0], steps[1], rtol=1e-3)


def test_a_resumed_run_keeps_its_constant() -> None:
    model, stream = make_net(), batches((7, LAYERS[0]))
    optimizer = PathSGD(model, 0.1, metric="paper", scale="sgd", clip=1.0)

    def step(net: nn.Module, by: PathSGD, x: Tensor) -> None:
        by.zero_grad()
        loss_of(net, x).backward()
        by.step()

    for _ in range(3):
        step(model, optimizer, next(stream))
    other = copy.deepcopy(model)
    resumed = PathSGD(other, 0.1, metric="paper", scale="sgd", clip=1.0)
    resumed.load_state_dict(optimizer.state_dict())
    again = copy.deepcopy(optimizer)
    assert again.scale == "sgd"
    for _ in range(2):
        x = next(stream)
        step(model, optimizer, x)
        step(other, resumed, x)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_first_gradient_of_zero_sets_no_constant() -> None:
    model, x = make_net(), next(batches((7, LAYERS[0])))
    optimizer = PathSGD(model, 0.1, metric="paper", scale="sgd")
    (0.0 * loss_of(model, x)).backward()
    optimizer.step()
    assert optimizer.param_groups[0]["constant"] is None
    optimizer.zero_grad()
    loss_of(model, x).backward()
    optimizer.step()
    assert optimizer.param_groups[0]["constant"] > 0


def test_what_would_have_no_effect_is_refused() -> None:
    model = make_net()
    with pytest.raises(ValueError, match="paper's metric"):
        PathSGD(model, 0.1, scale="sgd")
    with pytest.raises(ValueError, match="'kappa' or 'sgd'"):
        PathSGD(model, 0.1, metric="paper", scale="adam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="DualNorm"):
        PathAdam(model, metric="paper", clip=1.0)
    with pytest.raises(ValueError, match="positive and finite"):
        DualNorm(0.0)
    with pytest.raises(ValueError, match="positive and finite"):
        PathSGD(model, 0.1, metric="paper", clip=-1.0)
    with pytest.raises(ValueError, match="units of their own"):
        wrap(torch.optim.SGD(model.parameters(), 0.1), model, metric="relative", scale="sgd")
    PathAdam(model, metric="paper", clip=DualNorm(1.0))
    assert pathsgd.optim.DualNorm is DualNorm

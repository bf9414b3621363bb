"""The optimisers on another device: the CPU's steps, no waiting, few operations."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathsgd import Metric, PathAdam, PathSGD
from pathsgd.metric.geometry import Geometry
from pathsgd.optim import InPathCoordinates, wrap
from support.device import DEVICE, Counts, counting, to_cpu


class Recurrent(nn.Module):
    def __init__(self, every_step: bool = False, **options: object) -> None:
        super().__init__()
        self.every_step = every_step
        self.rnn = nn.RNN(3, 6, nonlinearity="relu", batch_first=True, **options)  # type: ignore[arg-type]
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.head(states if self.every_step else states[:, -1])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.rnn = nn.RNN(4, 4, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )


def batch_norm() -> nn.Module:
    # No bias in front of it: its gradient would be rounding only, which differs between devices.
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def batch_norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(27, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(5, 4)),
    "cnn": (cnn, lambda: torch.randn(2, 1, 8, 8)),
    "batch norm": (batch_norm, lambda: torch.randn(5, 4)),
    "batch norms": (batch_norms, lambda: torch.randn(6, 1, 4, 4)),
    "rnn": (Recurrent, lambda: torch.randn(2, 5, 3)),
    "rnn, every step": (lambda: Recurrent(every_step=True), lambda: torch.randn(2, 5, 3)),
    "deep rnn": (lambda: Recurrent(num_layers=2, bidirectional=True), lambda: torch.randn(2, 5, 3)),
    "tied words": (Words, lambda: torch.randint(7, (2, 5))),
}
FEW = ("PathAdam", "PathSGD, momentum")
OPTIMIZERS: dict[str, Callable[[nn.Module], PathAdam | PathSGD]] = {
    "PathAdam": lambda m: PathAdam(m, lr=1e-2, refresh_every=3),
    "PathAdam, absolute": lambda m: PathAdam(m, lr=1e-2, metric="absolute", clip=0.1),
    "PathAdam, paper": lambda m: PathAdam(m, lr=1e-3, metric="paper"),
    "PathAdam, rho .5, no bounds, decay": lambda m: PathAdam(
        m, lr=1e-3, metric=Metric(rho=0.5), clip=None, growth=None, weight_decay=0.1
    ),
    "PathAdam, rho .5, growth": lambda m: PathAdam(m, lr=1e-1, metric=Metric(rho=0.5), growth=0.05),
    "PathAdam, both terms": lambda m: PathAdam(m, lr=1e-2, terms="both"),
    "PathSGD": lambda m: PathSGD(m, lr=1e-2, growth=None),
    "PathSGD, momentum": lambda m: PathSGD(m, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "PathSGD, nesterov, up": lambda m: PathSGD(
        m, lr=1e-3, momentum=0.9, nesterov=True, maximize=True
    ),
    "PathSGD, paper": lambda m: PathSGD(m, lr=1e-4, metric="paper"),
    "PathSGD, two groups": lambda m: PathSGD(
        m,
        lr=1e-2,
        momentum=0.5,
        params=[{"params": [p], "lr": 1e-3 * (1 + i)} for i, p in enumerate(m.parameters())],
    ),
}

# Every optimiser on a recurrent net and on one that is not, every model with two optimisers.
TABLE = [
    (name, kind) for name in MODELS for kind in OPTIMIZERS if name in ("rnn", "cnn") or kind in FEW
]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int
) -> list[Counts]:
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        output = model(x)
        (output * (1 + step)).square().mean().backward()
        with counting() as counts:
            optimizer.step()
        found.append(counts)
    return found


def pair(name: str) -> tuple[nn.Module, Tensor, nn.Module, Tensor]:
    torch.manual_seed(1)
    model, x = MODELS[name][0](), MODELS[name][1]()
    return model, x, copy.deepcopy(model).to(DEVICE), x.to(DEVICE)


def assert_same(model: nn.Module, there: nn.Module, rtol: float = 1e-4) -> None:
    for (name, p), q in zip(model.named_parameters(), there.parameters()):
        assert q.device == DEVICE
        wanted, found = p.detach(), to_cpu(q)
        assert torch.allclose(found, wanted, rtol=rtol, atol=1e-6), (
            f"{name}: {found} instead of {wanted}"
        )


@pytest.mark.parametrize(("name", "optimizer"), TABLE)
def test_steps_are_those_of_the_cpu(name: str, optimizer: str) -> None:
    model, x, there, x_there = pair(name)
    before = [p.detach().clone() for p in model.parameters()]
    here_opt, there_opt = OPTIMIZERS[optimizer](model), OPTIMIZERS[optimizer](there)
    train(model, here_opt, x, 8)
    train(there, there_opt, x_there, 8)
    assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters()))
    assert_same(model, there)
    assert there_opt.log_gamma_sq == pytest.approx(here_opt.log_gamma_sq, rel=1e-5)
    assert there_opt.dual_norm == pytest.approx(here_opt.dual_norm, rel=1e-3, nan_ok=True)


@pytest.mark.parametrize(("name", "optimizer"), TABLE)
def test_nobody_waits_between_measurements(name: str, optimizer: str) -> None:
    _, _, there, x = pair(name)
    made = OPTIMIZERS[optimizer](there)
    made._refresh.plan = dataclasses.replace(made.plan, refresh_every=3)
    counts = train(there, made, x, 8)
    between = [c.syncs for i, c in enumerate(counts) if i % 3]
    assert between == [0] * len(between), [c.waits for c in counts]
    if made.plan.terms == "first":
        assert [counts[i].syncs for i in (3, 6)] == [1, 1], counts[3].waits


# How often a step's growth has to be measured: once for each matrix that paths use repeatedly.
REPEATED = {
    "mlp": 0,
    "cnn": 0,
    "batch norm": 0,
    "batch norms": 0,
    "rnn": 1,
    "rnn, every step": 1,
    "tied words": 2,
    "deep rnn": 4,
}


@pytest.mark.parametrize("name", REPEATED)
def test_operations_of_a_step(name: str) -> None:
    """At most four times those of torch's Adam, and twelve for each repeated matrix but the first.

    A whole foreach call counts as one operation.
    """
    _, _, there, x = pair(name)
    adam = train(there, torch.optim.Adam(there.parameters(), foreach=True), x, 3)[-1].launches
    ours = train(there, PathAdam(there, refresh_every=10), x, 3)[-1].launches
    assert ours <= 4 * adam + 12 * max(0, REPEATED[name] - 1), (ours, adam)


@pytest.mark.parametrize("every_step", [False, True])
def test_operations_of_a_plain_recurrent_net_measured(every_step: bool) -> None:
    there = Recurrent(every_step=every_step).to(DEVICE)
    geometry, inputs = Geometry(there), (torch.randn(1, 750, 3).to(DEVICE),)
    root = geometry.measure(inputs).next_root
    with counting() as counts:
        geometry.measure(inputs, root=root)
    assert counts.launches <= 60 and counts.syncs == 1, counts


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("optimizer", ["PathAdam", "PathAdam, absolute", "PathSGD, momentum"])
def test_a_gradient_that_is_not_finite_moves_nothing(optimizer: str, bad: float) -> None:
    model, x, there, x_there = pair("rnn")
    here_opt, there_opt = OPTIMIZERS[optimizer](model), OPTIMIZERS[optimizer](there)
    for m, o, inputs in ((model, here_opt, x), (there, there_opt, x_there)):
        train(m, o, inputs, 4)
        next(iter(m.parameters())).grad[0, 0] = bad
        before = to_cpu(
            [copy.deepcopy(list(m.parameters())), copy.deepcopy(o.state_dict()["state"])]
        )
        o.step()
        after = to_cpu([list(m.parameters()), o.state_dict()["state"]])
        for index, state in before[1].items():
            for key in {"exp_avg", "exp_avg_sq", "momentum_buffer", "step"} & state.keys():
                assert torch.equal(
                    torch.as_tensor(state[key]), torch.as_tensor(after[1][index][key])
                ), key
        assert all(torch.equal(p.detach(), q.detach()) for p, q in zip(before[0], after[0]))
        train(m, o, inputs, 4)
    assert_same(model, there)


def test_a_state_crosses_to_the_device_and_back() -> None:
    model, x, there, x_there = pair("rnn")
    here_opt, there_opt = PathAdam(model, refresh_every=3), PathAdam(there, refresh_every=3)
    train(model, here_opt, x, 4)
    there.load_state_dict(model.state_dict())
    there_opt.load_state_dict(here_opt.state_dict())
    train(model, here_opt, x, 4)
    train(there, there_opt, x_there, 4)
    assert_same(model, there)
    model.load_state_dict(to_cpu(there.state_dict()))
    here_opt.load_state_dict(to_cpu(there_opt.state_dict()))
    train(model, here_opt, x, 4)
    train(there, there_opt, x_there, 4)
    assert_same(model, there)


def test_any_torch_optimizer_sees_normalised_gradients() -> None:
    model, x, there, x_there = pair("rnn")
    for m, inputs in ((model, x), (there, x_there)):
        optimizer = torch.optim.SGD(m.parameters(), lr=1e-4)
        wrap(optimizer, m)
        train(m, optimizer, inputs, 3)
    assert_same(model, there)


@pytest.mark.parametrize("name", ["mlp", "cnn", "batch norm", "rnn", "tied words"])
@pytest.mark.parametrize(
    "inner", [torch.optim.RMSprop, torch.optim.NAdam], ids=lambda inner: inner.__name__
)
def test_any_torch_optimizer_steps_in_path_coordinates(
    name: str, inner: type[torch.optim.Optimizer]
) -> None:
    model, x, there, x_there = pair(name)
    for m, inputs in ((model, x), (there, x_there)):
        train(m, InPathCoordinates(inner(m.parameters(), lr=1e-3), m, refresh_every=2), inputs, 6)  # type: ignore[call-arg]
    assert_same(model, there)

"""A frozen part is measured once: the same metric for what moves, from less work."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from pathsgd import Metric
from pathsgd.kernels.whiten import dense
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings
from pathsgd.network import squared
from pathsgd.network.rules.convolution import Convolution


class Net(nn.Module):
    """Convolutions with normalisation, a residual sum, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.start, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.one, self.two = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1)
        self.head = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.start(x)))
        h = h + self.two(torch.relu(self.one(h)))
        return self.head(torch.relu(h).mean((2, 3)))


X = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(1))
NAMES = [name for name, _ in Net().named_parameters()]


def freeze(model: nn.Module, moving: set[str]) -> None:
    for name, p in model.named_parameters():
        p.requires_grad_(name in moving)


def assert_right(geometry: Geometry, moving: set[str]) -> None:
    """What the short way gives for what moves is what the long way gives."""
    parameters = geometry.parameters()
    x = X.to(next(iter(parameters.values())).dtype)
    short, long = (geometry.measure((x,), exact=exact) for exact in (False, True))
    # In float32 kernels of convolutions are, too; of a model in float64 nothing is shortened.
    is_double = next(iter(parameters.values())).dtype is torch.float64
    near = {"rel": 1e-12} if is_double else {"rel": 0, "abs": 1e-6}
    assert set(short.kappa) >= moving and short.log_gamma_sq == pytest.approx(
        long.log_gamma_sq, **near
    )
    roots = whitenings(long, parameters, Metric())
    for name, root in whitenings(short, parameters, Metric()).items():
        if name in moving:
            torch.testing.assert_close(
                dense(root), dense(roots[name]), rtol=1e-12 if is_double else 1e-6, atol=0
            )


@settings(max_examples=25)
@given(
    moving=st.sets(st.sampled_from(NAMES), min_size=1),
    training=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_whatever_is_frozen_the_metric_of_the_rest_is_the_same(
    moving: set[str], training: bool, dtype: torch.dtype
) -> None:
    model = Net().train(training).to(dtype)
    freeze(model, moving)
    geometry = Geometry(model)
    for _ in range(2):  # made, and then kept
        assert_right(geometry, moving)


def change_in_place(model: Net) -> None:
    with torch.no_grad():
        model.start.weight[0] *= 2


def change_unseen(model: Net) -> None:
    model.start.weight.data[0] *= 2


def change_statistics(model: Net) -> None:
    model.norm.running_var *= 3


def load(model: Net) -> None:
    model.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()})


def replace(model: Net) -> None:
    model.start.weight = nn.Parameter(model.start.weight.detach() * 2, requires_grad=False)


@pytest.mark.parametrize(
    "change", [change_in_place, change_unseen, change_statistics, load, replace]
)
def test_what_is_frozen_is_looked_at_again_when_it_has_changed(change) -> None:
    model = Net().eval()
    moving = {name for name in NAMES if name.startswith("head")}
    freeze(model, moving)
    geometry = Geometry(model)
    assert_right(geometry, moving)
    change(model)
    assert_right(geometry, moving)
    freeze(model, set(NAMES))
    assert_right(geometry, set(NAMES))


@pytest.mark.parametrize("training", [True, False])
def test_a_frozen_backbone_is_evaluated_once(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: the convolutions of the squared network, which steps of the head ask for."""
    model = Net()
    freeze(model, {name for name in NAMES if name.startswith("head")})
    model.train(training)
    convolutions, squares = [], set()
    convolve, power = Convolution.squared, squared.power_of

    def counted(self, *args, **kwargs):
        convolutions.append(args)
        return convolve(self, *args, **kwargs)

    def weighed(values, order):
        squares.add(id(values))
        return power(values, order)

    monkeypatch.setattr(Convolution, "squared", counted)
    monkeypatch.setattr(squared, "power_of", weighed)
    optimizer = pathsgd.PathAdam(model)
    for step in range(4):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        if step == 1:
            convolutions.clear()
            squares.clear()
        optimizer.step()
    # The residual sum's last layer and the normalisation's enter the units that the head leaves.
    assert len(convolutions) == 3 * 2
    assert id(model.norm.weight) in squares and id(model.start.weight) not in squares

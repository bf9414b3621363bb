"""Units of a residual stream: how much flows through them where a parameter enters."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from pathsgd import Metric
from pathsgd.metric.flow import LEAST_FLOW, flow_at_places, path_flow
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings

WIDTH = 6


class Stream(nn.Module):
    """x -> start -> h + two(relu(one(h))), blocks times -> out; blocks may normalise inputs."""

    def __init__(self, blocks: int = 2, *, normalises: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.start = nn.Linear(3, WIDTH)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(WIDTH) if normalises else nn.Identity() for _ in range(blocks + 1)
        )
        self.ones = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(blocks))
        self.twos = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(blocks))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for norm, one, two in zip(self.norms, self.ones, self.twos):
            h = h + two(torch.relu(one(norm(h))))
        return self.out(torch.relu(self.norms[-1](h)))


def measured(model: nn.Module, x: Tensor):
    geometry = Geometry(model)
    return geometry.measure((x,)), geometry.parameters()


def nodes_of(found, name: str) -> Tensor:
    return found.spaces.edges[name].target.reshape(-1)


def test_at_the_last_place_it_is_what_the_output_reads() -> None:
    """s * delta by hand: the squared stream before the output times the squared output weights."""
    model = Stream().double()
    found, parameters = measured(model, torch.zeros(1, 3, dtype=torch.float64))
    q = {name: p.detach().square() for name, p in model.named_parameters()}
    s = q["start.weight"].sum(1) + q["start.bias"]
    for k in range(2):
        inner = q[f"ones.{k}.weight"] @ s + q[f"ones.{k}.bias"]
        s = s + q[f"twos.{k}.weight"] @ inner + q[f"twos.{k}.bias"]
    there = s * q["out.weight"][0]
    there = there / (there.sum() + q["out.bias"])
    flow = flow_at_places(found, parameters)
    for name in ("twos.1.weight", "twos.1.bias"):
        torch.testing.assert_close(flow[name][nodes_of(found, name)], there)
    at = nodes_of(found, "start.weight")
    torch.testing.assert_close(flow["start.weight"][at], path_flow(found, parameters)[at])


@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_added_at_one_place_counts_together(swapped: bool) -> None:
    """Two tables of very different size, added: neither has less ahead of it than the other."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.large, self.small, self.out = (
                nn.Linear(3, WIDTH),
                nn.Linear(3, WIDTH),
                nn.Linear(WIDTH, 1),
            )
            nn.init.normal_(self.small.weight, std=1e-4)

        def forward(self, x: Tensor) -> Tensor:
            a, b = (self.small(x), self.large(x)) if swapped else (self.large(x), self.small(x))
            return self.out(torch.relu(a + b))

    found, parameters = measured(Sum().double(), torch.zeros(1, 3, dtype=torch.float64))
    phi = path_flow(found, parameters)
    for name, flow in flow_at_places(found, parameters).items():
        at = nodes_of(found, name)
        torch.testing.assert_close(flow[at], phi[at])


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1)),
        nn.RNN(3, 5, nonlinearity="relu", num_layers=2),
        nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)),
    ],
    ids=["mlp", "rnn", "bn"],
)
def test_nets_without_streams_have_no_such_places(model: nn.Module) -> None:
    found, _ = measured(
        model, torch.zeros(4, 3) if isinstance(model, nn.Sequential) else torch.zeros(4, 1, 3)
    )
    assert not found.spaces.places and not found.ahead


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), normalises=st.booleans(), power=st.integers(0, 12))
def test_whitenings_are_covariant(seed: int, normalises: bool, power: int) -> None:
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    model = Stream(normalises=normalises, seed=seed).double()
    with torch.no_grad():
        model.out.weight[:, 0] *= 10.0**-power
    one, parameters = measured(model, x)
    old = {name: p.detach().clone() for name, p in parameters.items()}
    roots = {name: root.clone() for name, root in whitenings(one, parameters, Metric()).items()}
    pathsgd.random_rescaling(model, x, generator=torch.Generator().manual_seed(seed))
    two, parameters = measured(model, x)
    for name, root in whitenings(two, parameters, Metric()).items():
        c = torch.where(old[name] != 0, parameters[name].detach() / old[name], 1.0)
        if bool((old[name] != 0).all()):
            torch.testing.assert_close(
                (root / c).expand_as(c), roots[name].expand_as(c), rtol=1e-7, atol=0
            )


def test_a_stream_of_which_the_output_reads_next_to_nothing_stays_bounded() -> None:
    """The last block leads to the output alone; the blocks before it are read by others too."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    y = x[:, :1].relu() - x[:, 1:2].abs()
    ours = Stream(normalises=True)
    with torch.no_grad():
        ours.out.weight[:, :2] *= 1e-4
    theirs = copy.deepcopy(ours)
    losses = []
    for model, optimizer in (
        (ours, pathsgd.PathAdam(ours, lr=1e-3)),
        (theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3)),
    ):
        for _ in range(100):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    largest = [max(float(p.detach().abs().max()) for p in m.parameters()) for m in (ours, theirs)]
    assert largest[0] < 2 * largest[1]
    assert losses[99] < 0.8 * losses[0]


def test_the_bound_is_continuous_in_how_little_the_output_reads() -> None:
    """In whitened coordinates, a weight of the last block is never less than the bound makes it."""
    sizes = []
    for power in range(0, 16):
        model = Stream(normalises=True).double()
        with torch.no_grad():
            model.out.weight[:, 0] *= 10.0**-power
        found, parameters = measured(model, torch.zeros(4, 3, dtype=torch.float64))
        root = whitenings(found, parameters, Metric())["twos.1.weight"]
        sizes.append(float(root[0].max()))
    assert max(sizes) < sizes[0] * LEAST_FLOW**-0.5 * WIDTH
    torch.testing.assert_close(sizes[-1], sizes[-2], rtol=1e-6, atol=0)

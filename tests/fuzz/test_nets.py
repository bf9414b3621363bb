"""Random small nets with randomly shared weights: library = autodiff = path enumeration.

Units are arranged in layers and time steps. Each connection draws its weight from one pool, so the
same matrix may serve between layers, over time, and in several places of one path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from oracle import GraphBuilder, Layout, Network, feasible_rescalings, pack, unpack
from support import oracles
from support.fuzz import fuzzed


@dataclass(frozen=True)
class Layer:
    up: int
    """Index in the pool of the matrix from the layer below."""
    over: int | None
    """Index in the pool of the matrix from the step before, or no recurrence."""
    bias: int | None
    skip: bool


@dataclass(frozen=True)
class Plan:
    width: int
    steps: int
    layers: tuple[Layer, ...]
    every_step: bool


POOL = 3


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    index = st.integers(0, POOL - 1)
    layer = st.builds(Layer, index, st.none() | index, st.none() | index, st.booleans())
    depth, steps = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)]))
    layers = draw(st.lists(layer, min_size=depth, max_size=depth))
    return Plan(draw(st.integers(1, 2)), steps, tuple(layers), draw(st.booleans()))


class PlannedNet(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan, w = plan, plan.width
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(w, w)) for _ in range(POOL)])
        self.biases = nn.ParameterList([nn.Parameter(torch.randn(w)) for _ in range(POOL)])
        self.out = nn.Parameter(torch.randn(1, w))

    def forward(self, x: Tensor) -> Tensor:
        below = list(x)
        for layer in self.plan.layers:
            states: list[Tensor] = []
            for t, value in enumerate(below):
                z = value @ self.matrices[layer.up].T
                if layer.over is not None and t:
                    z = z + states[-1] @ self.matrices[layer.over].T
                if layer.bias is not None:
                    z = z + self.biases[layer.bias]
                states.append(torch.relu(z + value if layer.skip else z))
            below = states
        return torch.stack(
            [h @ self.out.T for h in (below if self.plan.every_step else below[-1:])]
        )


def drawn(plan: Plan) -> tuple[Network, Layout]:
    draw, w = GraphBuilder(), plan.width
    matrices = [draw.parameter(f"matrices.{k}", w, w) for k in range(POOL)]
    biases = [draw.parameter(f"biases.{k}", w) for k in range(POOL)]
    out = draw.parameter("out", 1, w)
    below = draw.inputs("x", plan.steps, w)
    for depth, layer in enumerate(plan.layers):
        states = draw.hidden(f"h{depth}", plan.steps, w)
        for t in range(plan.steps):
            draw.dense(below[t], states[t], matrices[layer.up])
            if layer.over is not None and t:
                draw.dense(states[t - 1], states[t], matrices[layer.over])
            if layer.bias is not None:
                draw.bias(states[t], biases[layer.bias])
            for source, target in zip(below[t], states[t]) if layer.skip else ():
                draw.constant(source, target)
        below = states
    for t in range(plan.steps) if plan.every_step else [plan.steps - 1]:
        draw.dense(below[t], draw.outputs(f"y{t}", 1), out)
    return draw.finish()


@fuzzed(0.12)
@given(plans(), st.integers(0, 2**32 - 1))
def test_any_sharing_is_measured_exactly(plan: Plan, seed: int) -> None:
    torch.manual_seed(seed)
    net = PlannedNet(plan).double()
    x = torch.rand(plan.steps, 2, plan.width, dtype=torch.float64)
    ones = torch.ones(plan.steps, 1, plan.width, dtype=torch.float64)
    network, layout = drawn(plan)
    parameters = dict(net.named_parameters())
    p = pack(layout, {name: value.detach().numpy() for name, value in parameters.items()})
    assert float(pathsgd.gamma_sq(net, x)) == pytest.approx(network.gamma_sq_by_paths(p), rel=1e-9)

    def squared(q: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, q, (ones,)).sum()

    automatic = {
        "first": oracles.kappa1(squared, parameters),
        "both": oracles.kappa(squared, parameters),
    }
    for terms, enumerated in (("first", network.kappa1(p)), ("both", network.kappa(p))):
        found = pathsgd.kappa(net, x, terms=terms)
        for name, values in unpack(layout, enumerated).items():
            np.testing.assert_allclose(
                found[name], values, rtol=1e-9, atol=0, err_msg=f"{terms} {name}"
            )
            torch.testing.assert_close(found[name], automatic[terms][name], rtol=1e-9, atol=0)


@fuzzed(0.11)
@given(plans(), st.integers(0, 2**32 - 1))
def test_every_rescaling_found_is_feasible(plan: Plan, seed: int) -> None:
    torch.manual_seed(seed)
    net = PlannedNet(plan).double()
    x = torch.rand(plan.steps, 2, plan.width, dtype=torch.float64)
    free = pathsgd.node_spaces(net, x).count
    assert free <= len(feasible_rescalings(drawn(plan)[0]))
    if free:
        output, gamma_sq = net(x).detach(), pathsgd.gamma_sq(net, x)
        pathsgd.random_rescaling(net, x, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(
            net(x).detach(), output, rtol=1e-9, atol=1e-10 * float(output.abs().max())
        )
        torch.testing.assert_close(pathsgd.gamma_sq(net, x), gamma_sq, rtol=1e-12, atol=0)

"""1/sqrt(K) and path flow, from a measurement."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pathsgd
from pathsgd import Metric, kappa, log_gamma_sq, random_rescaling
from pathsgd.metric.choice import PAPER
from pathsgd.metric.flow import path_flow
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import inverse_metric, whitenings
from support.metrics import slow_metric
from support.small_rnn import rnn


def measured(model, x, terms="first"):
    return Geometry(model).measure((x,), terms), dict(model.named_parameters())


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    rho=st.floats(0, 1),
    layers=st.integers(1, 2),
    terms=st.sampled_from(["first", "both"]),
)
def test_whitenings_are_covariant_and_flow_invariant(seed, rho, layers, terms):
    """1/sqrt(K_i) -> c / sqrt(K_i) when p_i -> c p_i; phi stays."""
    model, x = rnn(seed, layers)
    one, parameters = measured(model, x, terms)
    old = {name: p.detach().clone() for name, p in parameters.items()}
    flow, roots = path_flow(one, parameters), whitenings(one, parameters, Metric(rho))
    random_rescaling(model, x, generator=torch.Generator().manual_seed(seed))
    two, parameters = measured(model, x, terms)
    torch.testing.assert_close(path_flow(two, parameters), flow, rtol=1e-9, atol=1e-300)
    for name, root in whitenings(two, parameters, Metric(rho)).items():
        c = parameters[name].detach() / old[name]
        torch.testing.assert_close(
            (root / c).expand_as(c), roots[name].expand_as(c), rtol=1e-8, atol=0
        )


def test_flow_is_conserved():
    """What enters a unit leaves it: its outgoing edges carry the same share."""
    model, x = rnn(layers=2)
    found, parameters = measured(model, x)
    flow, leaving = (
        path_flow(found, parameters),
        torch.zeros(found.spaces.count + 1, dtype=torch.float64),
    )
    for name, p in parameters.items():
        share = (p.detach() ** 2 * found.kappa1[name]).reshape(-1)
        leaving.scatter_add_(0, found.spaces.edges[name].source.expand(p.shape).reshape(-1), share)
    torch.testing.assert_close(flow[1:], leaving[1:], rtol=1e-9, atol=0)
    assert flow[0] == 1


def test_a_balanced_net_has_the_euclidean_metric_at_rho_one():
    """One hidden layer: K = sqrt(out / in) / gamma, from a unit's squared weights out and in."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    x = torch.zeros(1, 3, dtype=torch.float64)
    pathsgd.balance(model, x)
    found, parameters = measured(model, x)
    gamma = math.exp(found.log_gamma_sq / 2)
    for root in whitenings(found, parameters, Metric()).values():
        torch.testing.assert_close(root, torch.full_like(root, math.sqrt(gamma)), rtol=1e-6, atol=0)


def test_unused_parameters_are_euclidean():
    model, x = rnn()
    model.spare = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    found, parameters = measured(model, x)
    spare = inverse_metric(found, parameters, Metric(0.5))["spare"]
    assert spare.expand(2, 3).shape == (2, 3) and bool((spare == 1).all())


def test_units_of_kappa():
    model, x = rnn()
    found, parameters = measured(model, x)
    for name, value in kappa(model, x).items():
        for log_unit in (0.0, 2.0):
            root = whitenings(found, parameters, PAPER, log_unit=log_unit)[name]
            expected = (math.exp(log_unit) / value).sqrt()
            torch.testing.assert_close(root.expand_as(value), expected, rtol=1e-12, atol=0)
    assert found.log_scale == pytest.approx(float(log_gamma_sq(model, x)), rel=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("layers", [1, 2])
def test_whitenings_equal_the_metric_written_out(rho, layers):
    model, x = rnn(3, layers)
    found, parameters = measured(model, x)
    roots, inverses = (f(found, parameters, Metric(rho)) for f in (whitenings, inverse_metric))
    for name, K in slow_metric(found, parameters, rho).items():
        torch.testing.assert_close(roots[name].expand_as(K), K.rsqrt(), rtol=1e-9, atol=0)
        torch.testing.assert_close(inverses[name].expand_as(K), 1 / K, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rho", [-1.0, math.inf, math.nan])
def test_a_rho_that_makes_no_sense_is_refused(rho):
    with pytest.raises(ValueError, match="rho"):
        Metric(rho)

"""Pure functions of gradients and a measure."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pathsgd
from pathsgd import kappa, log_gamma_sq, path_normalize_grad_, random_rescaling
from pathsgd.measure import Geometry
from pathsgd.normalize import clip_factor, inverse, inverse_metric, metric, path_flow, spectral_norm


def rnn(seed=0, layers=1, dtype=torch.float64):
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(2, 4, layers, nonlinearity="relu", batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1])

    return Net().to(dtype), torch.randn(3, 5, 2, dtype=dtype)


def gradients(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# ---- path_normalize_grad_ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", ["first", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_become_gradients_over_kappa_at_every_call(terms, dtype):
    model, x = rnn(dtype=dtype)
    for _ in range(3):
        before = gradients(model, x)
        norm = path_normalize_grad_(model, x, terms=terms)
        measured = kappa(model, x, terms=terms)
        for name, p in model.named_parameters():
            assert p.grad.dtype == dtype
            torch.testing.assert_close(p.grad, (before[name].double() / measured[name]).to(dtype), rtol=1e-6, atol=0)
            assert name == "out.bias" or not torch.equal(p.grad, before[name])  # kappa of the output bias is 1
        expected = math.sqrt(sum(float((before[n].double() ** 2 / k).sum()) for n, k in measured.items()))
        assert norm.item() == pytest.approx(expected, rel=1e-6)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(1e-3 * p.grad)


def test_relative_divides_by_gamma_squared_and_leaves_fixed_parameters_alone():
    model, x = rnn()
    before = gradients(model, x)
    path_normalize_grad_(model, x, relative=True)
    for name, value in kappa(model, x, relative=True).items():
        divisor = torch.ones_like(value) if name == "out.bias" else value
        torch.testing.assert_close(model.get_parameter(name).grad, before[name] / divisor, rtol=1e-12, atol=0)


def test_clip_bounds_the_dual_norm():
    model, x = rnn()
    gradients(model, x)
    norm = path_normalize_grad_(model, x)
    unclipped = {name: p.grad.clone() for name, p in model.named_parameters()}
    gradients(model, x)
    assert path_normalize_grad_(model, x, clip=norm.item() / 4) == norm
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, unclipped[name] / 4, rtol=1e-12, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_clipped_gradient_that_is_not_finite_becomes_zero(value):
    model, x = rnn()
    gradients(model, x)
    model.out.weight.grad[0, 0] = value
    assert not math.isfinite(path_normalize_grad_(model, x, clip=1.0))
    assert not any(p.grad.any() for p in model.parameters())


def test_frozen_parameters_and_models_without_gradients_are_left_alone():
    model, x = rnn()
    assert path_normalize_grad_(model, x) == 0
    model.rnn.requires_grad_(False)
    gradients_of_out = torch.autograd.grad(model(x).square().mean(), model.out.weight)[0]
    model(x).square().mean().backward()
    path_normalize_grad_(model, x)
    assert model.rnn.weight_hh_l0.grad is None
    expected = gradients_of_out / kappa(model, x)["out.weight"]
    torch.testing.assert_close(model.out.weight.grad, expected, rtol=1e-12, atol=0)


def test_entries_without_a_path_get_no_step_and_no_nan():
    model, x = rnn()
    with torch.no_grad():
        model.out.weight[:, 0] = 0.0
        model.rnn.weight_hh_l0[:, 0] = 0.0  # unit 0 leads nowhere
    gradients(model, x)
    model.rnn.weight_ih_l0.grad[0] = 1.0
    path_normalize_grad_(model, x)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert not model.rnn.weight_ih_l0.grad[0].any()
    assert kappa(model, x)["rnn.weight_ih_l0"][1:].all()


def test_it_works_where_gradients_are_switched_off():
    model, x = rnn()
    gradients(model, x)
    with torch.no_grad():
        switched_off = path_normalize_grad_(model, x)
    gradients(model, x)
    assert switched_off == path_normalize_grad_(model, x) > 0


# ---- metric, flow, inverse -----------------------------------------------------------------------------------------


def measured(model, x, terms="first"):
    return Geometry(model).measure((x,), terms), dict(model.named_parameters())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), rho=st.floats(0, 1), layers=st.integers(1, 2), terms=st.sampled_from(["first", "both"])
)
def test_the_metric_is_covariant_and_flow_invariant(seed, rho, layers, terms):
    """K_i -> K_i / c^2 when p_i -> c p_i; phi stays."""
    model, x = rnn(seed, layers)
    one, parameters = measured(model, x, terms)
    old = {name: p.detach().clone() for name, p in parameters.items()}
    flow, K = path_flow(one, parameters), metric(one, parameters, rho)
    random_rescaling(model, x, generator=torch.Generator().manual_seed(seed))
    two, parameters = measured(model, x, terms)
    torch.testing.assert_close(path_flow(two, parameters), flow, rtol=1e-9, atol=1e-300)
    for name, value in metric(two, parameters, rho).items():
        c = parameters[name].detach() / old[name]
        torch.testing.assert_close((value * c**2).expand_as(c), K[name].expand_as(c), rtol=1e-8, atol=0)


def test_flow_is_conserved():
    """What enters a unit leaves it: its outgoing edges carry the same share."""
    model, x = rnn(layers=2)
    found, parameters = measured(model, x)
    flow, leaving = path_flow(found, parameters), torch.zeros(found.spaces.count + 1, dtype=torch.float64)
    for name, p in parameters.items():
        share = (p.detach() ** 2 * found.kappa1[name]).reshape(-1)
        leaving.scatter_add_(0, found.spaces.edges[name].into.expand(p.shape).reshape(-1), share)
    torch.testing.assert_close(flow[1:], leaving[1:], rtol=1e-9, atol=0)
    assert flow[0] == 1


def test_a_balanced_net_has_the_euclidean_metric_at_rho_one():
    """One hidden layer: K = sqrt(out / in) / gamma, for the squared weights that go in and out of a unit."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    x = torch.zeros(1, 3, dtype=torch.float64)
    pathsgd.balance(model, x)
    found, parameters = measured(model, x)
    gamma = math.exp(found.log_gamma_sq / 2)
    for K in metric(found, parameters, 1.0).values():
        torch.testing.assert_close(K, torch.full_like(K, 1 / gamma), rtol=1e-6, atol=0)


def test_the_inverse_of_zero_is_zero():
    values = torch.tensor([0.0, 2.0, math.inf], dtype=torch.float64)
    assert inverse(values).tolist() == [0.0, 0.5, 0.0]


def test_unused_parameters_have_no_inverse():
    model, x = rnn()
    model.spare = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    found, parameters = measured(model, x)
    spare = inverse_metric(found, parameters, 0.5, relative=True)["spare"]
    assert spare.expand(2, 3).shape == (2, 3) and not spare.any()


def test_units_of_kappa():
    model, x = rnn()
    found, parameters = measured(model, x)
    absolute = inverse_metric(found, parameters, 0.0, relative=False)
    for name, value in kappa(model, x).items():
        torch.testing.assert_close(absolute[name].expand_as(value), 1 / value, rtol=1e-12, atol=0)
    counted = inverse_metric(found, parameters, 0.0, relative=True, log_unit=2.0)
    ratio = counted["rnn.weight_hh_l0"] / absolute["rnn.weight_hh_l0"]
    torch.testing.assert_close(ratio, torch.full_like(ratio, math.exp(2.0)), rtol=1e-12, atol=0)
    assert found.log_scale == pytest.approx(float(log_gamma_sq(model, x)), rel=1e-12)


def test_rho_needs_the_relative_metric():
    model, x = rnn()
    found, parameters = measured(model, x)
    with pytest.raises(ValueError, match="rho"):
        inverse_metric(found, parameters, 0.5, relative=False)


@given(norm=st.floats(0, 1e30), clip=st.floats(1e-6, 1e6))
def test_a_clipped_norm_is_within_the_bound(norm, clip):
    factor = clip_factor(norm, clip)
    assert 0 < factor <= 1
    assert norm * factor <= clip * (1 + 1e-12)
    assert factor == 1 or norm > clip


def test_clipping_what_is_not_finite():
    assert clip_factor(math.nan, 1.0) == clip_factor(math.inf, 1.0) == 0.0
    assert clip_factor(math.inf, None) == 1.0


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_spectral_norm_is_found_within_a_few_calls(scale):
    """float32, where the squares of such entries would be zero or infinite."""
    torch.manual_seed(0)
    matrix, direction = torch.randn(6, 9) * scale, torch.ones(9)
    for _ in range(10):
        found, direction = spectral_norm(matrix, direction)
        assert found <= torch.linalg.matrix_norm(matrix.double(), 2).item() * (1 + 1e-5)
    assert found == pytest.approx(torch.linalg.matrix_norm(matrix.double(), 2).item(), rel=1e-3)


def test_the_spectral_norm_of_nothing_keeps_its_direction():
    start = torch.ones(3)
    assert spectral_norm(torch.zeros(2, 3), start) == (0.0, start)
    assert math.isnan(spectral_norm(torch.full((2, 3), math.nan), start)[0])


class TwiceInTraining(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


def test_training_and_evaluation_are_measured_apart():
    geometry, x = Geometry(TwiceInTraining(3, 2).double()), torch.zeros(5, 3, dtype=torch.float64)
    found = []
    for mode in (True, False, True):
        geometry.model.train(mode)
        found.append(geometry.measure((x,)).log_gamma_sq)
    assert found[0] == found[2] == pytest.approx(found[1] + math.log(4))

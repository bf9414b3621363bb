"""Path-normalised gradients in place."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathsgd import Metric, kappa, path_normalize_grad_
from pathsgd.metric.bounds import clip_factor
from pathsgd.optim import DualNorm
from support.small_rnn import gradients, rnn


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
            torch.testing.assert_close(
                p.grad, (before[name].double() / measured[name]).to(dtype), rtol=1e-6, atol=0
            )
            assert name == "out.bias" or not torch.equal(
                p.grad, before[name]
            )  # kappa of the output bias is 1
        expected = math.sqrt(
            sum(float((before[n].double() ** 2 / k).sum()) for n, k in measured.items())
        )
        assert norm.item() == pytest.approx(expected, rel=1e-6)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(1e-3 * p.grad)


def test_relative_divides_by_gamma_squared_and_leaves_fixed_parameters_alone():
    model, x = rnn()
    before = gradients(model, x)
    path_normalize_grad_(model, x, metric=Metric(0.0))
    for name, value in kappa(model, x, relative=True).items():
        divisor = torch.ones_like(value) if name == "out.bias" else value
        torch.testing.assert_close(
            model.get_parameter(name).grad, before[name] / divisor, rtol=1e-12, atol=0
        )


def test_clip_bounds_the_dual_norm():
    model, x = rnn()
    gradients(model, x)
    norm = path_normalize_grad_(model, x)
    unclipped = {name: p.grad.clone() for name, p in model.named_parameters()}
    gradients(model, x)
    assert path_normalize_grad_(model, x, clip=DualNorm(norm.item() / 4)) == norm
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


def test_the_absolute_metric_needs_an_optimiser():
    model, x = rnn()
    gradients(model, x)
    with pytest.raises(ValueError, match="absolute"):
        path_normalize_grad_(model, x, metric="absolute")


@given(norm=st.floats(0, 1e30), clip=st.floats(1e-6, 1e6))
def test_a_clipped_norm_is_within_the_bound(norm, clip):
    factor = clip_factor(norm, clip)
    assert 0 < factor <= 1
    assert norm * factor <= clip * (1 + 1e-12)
    assert factor == 1 or norm > clip


def test_clipping_what_is_not_finite():
    assert clip_factor(math.nan, 1.0) == clip_factor(math.inf, 1.0) == 0.0
    assert clip_factor(math.inf, None) == 1.0

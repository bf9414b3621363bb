"""An optimiser's float32 measurements against float64 and against the general route."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathsgd import Metric
from pathsgd.metric.geometry import Geometry, measure
from pathsgd.metric.whitening import balancing_ratios, whitenings
from pathsgd.paths import recurrent as plain
from support.metrics import slow_metric


class Net(nn.Module):
    def __init__(self, hidden: int, every: bool, vocabulary: int = 0) -> None:
        super().__init__()
        self.every = every
        self.table = nn.Embedding(vocabulary, 3) if vocabulary else None
        self.rnn = nn.RNN(3, hidden, nonlinearity="relu")
        self.out = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.rnn(x if self.table is None else self.table(x))
        return self.out(states if self.every else last[0])


def make(
    hidden: int, steps: int, gain: float, every: bool, spread: float = 1.0, vocabulary: int = 0
):
    """A net whose units are scaled by up to `spread` and back."""
    torch.manual_seed(hidden + steps)
    net = Net(hidden, every, vocabulary)
    alpha = torch.exp((2 * torch.rand(hidden) - 1) * math.log(spread))
    with torch.no_grad():
        net.rnn.weight_hh_l0.normal_(0, gain * hidden**-0.5).mul_(alpha[:, None] / alpha)
        for p in (net.rnn.weight_ih_l0, net.rnn.bias_ih_l0, net.rnn.bias_hh_l0):
            p.mul_(alpha.view(-1, *[1] * (p.dim() - 1)))
        net.out.weight.div_(alpha)
    x = torch.zeros(steps, 2, dtype=torch.long) if vocabulary else torch.zeros(steps, 2, 3)
    return net, x


def compare(net: nn.Module, x: Tensor, rtol: float) -> None:
    geometry, root = Geometry(net), None
    for _ in range(2):  # the second measurement starts from the root of the first
        fast = geometry.measure((x,), exact=False, root=root)
        root = fast.next_root
    exact = Geometry(net).measure((x,))
    assert fast.log_gamma_sq == pytest.approx(exact.log_gamma_sq, rel=1e-6, abs=1e-4)
    for name, kappa in exact.kappa.items():
        # The output bias has 1 / gamma^2 itself, where errors of all steps add up; elsewhere they
        # cancel.
        slack = 1e-4 if name == "out.bias" else 0.0
        torch.testing.assert_close(fast.kappa[name].double(), kappa, rtol=rtol + slack, atol=0)
    assert fast.flow and exact.flow
    for name, through in exact.flow.items():
        torch.testing.assert_close(fast.flow[name], through, rtol=rtol, atol=1e-30)


@given(
    hidden=st.sampled_from([1, 3, 8, 40]),
    steps=st.sampled_from([1, 2, 7, 100, 784]),
    gain=st.sampled_from([0.3, 1.0, 1.1, 3.0]),
    every=st.booleans(),
    spread=st.sampled_from([1.0, 100.0, 1e4, 1e9]),
    vocabulary=st.sampled_from([0, 5]),
)
@settings(max_examples=60)
def test_float32_keeps_to_the_exact_result(hidden, steps, gain, every, spread, vocabulary) -> None:
    compare(*make(hidden, steps, gain, every, spread, vocabulary), rtol=2e-5)


@pytest.mark.parametrize("steps", [1024, 20_000])
@pytest.mark.parametrize("every", [False, True])
def test_long_sequences(steps: int, every: bool) -> None:
    compare(*make(20, steps, 1.3, every), rtol=2e-5)


@pytest.mark.parametrize("part", ["rnn.weight_hh_l0", "rnn.weight_ih_l0", "out.weight"])
@pytest.mark.parametrize("every", [False, True])
def test_units_that_no_path_reaches_or_leaves(part: str, every: bool) -> None:
    """Zeros are zeros, and not numbers that were too small for float32."""
    net, x = make(6, 50, 1.0, every)
    with torch.no_grad():
        weight = net.get_parameter(part)
        (weight[:, 2] if part.startswith("out") else weight[2]).zero_()
        net.rnn.bias_ih_l0[2] = net.rnn.bias_hh_l0[2] = 0
        net.rnn.weight_hh_l0[:, 2] = 0
    compare(net, x, rtol=2e-5)


def test_what_float32_cannot_hold_is_measured_in_float64() -> None:
    net, x = make(6, 30, 1.0, False, spread=1e12)
    found = plain.kappa1(
        Geometry(net).structure((x,)).plain, dict(net.named_parameters()), exact=False
    )
    assert found.h.dtype == torch.float64
    net, x = make(6, 30, 1.0, False)
    found = plain.kappa1(
        Geometry(net).structure((x,)).plain, dict(net.named_parameters()), exact=False
    )
    assert found.h.dtype == torch.float32


def test_a_guess_of_the_root_that_is_far_off() -> None:
    net, x = make(20, 700, 3.0, False)
    net_of = Geometry(net).structure((x,)).plain
    parameters = dict(net.named_parameters())
    good = plain.kappa1(net_of, parameters)
    for root in (1.0, 2 * good.root, 100 * good.root):
        bad = plain.kappa1(net_of, parameters, root, exact=False)
        assert bad.log_gamma_sq == pytest.approx(good.log_gamma_sq, rel=1e-6)


@pytest.mark.parametrize("every", [False, True])
def test_both_terms(every: bool) -> None:
    for start in ("random", "identity"):
        net, x = make(12, 60, 1.0, every)
        if start == "identity":
            nn.init.eye_(net.rnn.weight_hh_l0)
        geometry = Geometry(net)
        fast, known = geometry.measure((x,), "both", exact=False), geometry.structure((x,))
        exact = measure(known.recording, dict(net.named_parameters()), known.spaces, "both")
        for name, kappa in exact.kappa.items():
            expanded = fast.kappa[name].double().expand_as(kappa)
            torch.testing.assert_close(expanded, kappa, rtol=5e-5, atol=0)


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_whitenings_are_roots_of_the_inverse_metric(rho: float) -> None:
    for exact in (False, True):
        net, x = make(7, 9, 1.0, True, vocabulary=4)
        measured, parameters = (
            Geometry(net).measure((x,), exact=exact),
            dict(net.named_parameters()),
        )
        K = slow_metric(measured, parameters, rho)
        found = whitenings(measured, parameters, Metric(rho))
        for name, p in parameters.items():
            assert found[name].dtype == p.dtype
            wanted = torch.where(K[name] > 0, K[name].rsqrt(), 0.0)
            torch.testing.assert_close(found[name].expand_as(p).double(), wanted, rtol=1e-6, atol=0)
        # Overwrites an earlier result of any content: another scale, or one tensor for two
        # parameters.
        last = {name: tensor.clone() for name, tensor in found.items()}
        last["rnn.bias_hh_l0"] = last["rnn.bias_ih_l0"]
        again = whitenings(measured, parameters, Metric(rho), last=last)
        assert all(torch.equal(again[name], found[name]) for name in found)


@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_ratios_take_whitened_steps_to_balanced_ones(rho: float) -> None:
    net, x = make(7, 9, 1.0, True)
    measured, parameters = Geometry(net).measure((x,)), dict(net.named_parameters())
    names = ["rnn.weight_hh_l0", "rnn.weight_ih_l0"]
    ratios = balancing_ratios(measured, parameters, Metric(rho), names)
    assert set(ratios) == set(names)
    for name in names:
        wanted = (
            slow_metric(measured, parameters, 1.0)[name]
            / slow_metric(measured, parameters, rho)[name]
        ).sqrt()
        ratio = ratios[name]
        if rho == 1:
            assert ratio is None
        else:
            assert ratio is not None
            torch.testing.assert_close(ratio.expand_as(wanted), wanted)


@torch.no_grad()
def test_gamma_sq_beyond_the_range_of_float32() -> None:
    net, x = make(400, 7, 1.0, False)
    net.rnn.weight_hh_l0.mul_(0.1)
    net.rnn.weight_ih_l0.mul_(1.3e9 / net.rnn.weight_ih_l0.abs().max())
    net.out.weight.mul_(1.3e9 / net.out.weight.abs().max())
    measured = Geometry(net).measure((x,), exact=False)
    assert (
        measured.kappa["rnn.weight_hh_l0"].dtype == torch.float32 and measured.log_gamma_sq > 88.8
    )
    compare(net, x, 1e-5)

"""The fast optimisers against slow ones: a tiny RNN as an explicit graph, paths enumerated."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from oracle import build, pack
from pathsgd import Metric, PathAdam, PathSGD

STEPS = 100


class TinyRnn(nn.RNN):
    """One recurrent layer read at the last step, with the reference builder's parameter names."""

    def __init__(self):
        super().__init__(1, 2, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(2, 1)

    def forward(self, x):
        return self.out(super().forward(x)[0][:, -1])


@pytest.fixture
def setup():
    torch.manual_seed(3)
    network, layout = build.rnn(1, [2], 1, steps=3)
    model = TinyRnn().double()
    assert set(layout) == dict(model.named_parameters()).keys()
    x, y = torch.rand(4, 3, 1, dtype=torch.float64), torch.rand(4, 1, dtype=torch.float64)
    return network, layout, model, x, y


class Reference:
    """Gradient, kappa and metric by definition: path sums over the unrolled graph, in numpy."""

    def __init__(self, network, layout, x, y):
        self.network, self.layout = network, layout
        self.x, self.y = x.numpy().reshape(len(x), -1), y.numpy()

    def gradient(self, p):
        """Of the mean square error, by back-propagation through the explicit graph."""
        terms = zip(self.x, self.y)
        return sum(
            self.network.gradient(p, x, 2 * (self.network.forward(p, x) - y)) for x, y in terms
        ) / len(self.x)

    def metric(self, p, rho, kappa):
        """K = kappa / gamma^2 / (phi_s phi_d)^(rho/2); 1 for the output bias, which never rescales.

        With rho, flow is floored at a tenth of the average, here 1/2; edges into such a unit in
        proportion.
        """
        flow = np.zeros(2)  # of a unit: the sum over its copies in time
        for name, share in zip(self.network.names, self.network.path_flow(p)):
            copy = re.fullmatch(r"h0\[\d+,(\d+)\]", name)
            if copy:
                flow[int(copy[1])] += share
        bounded = np.maximum(flow, 0.1 / 2)
        weight = bounded ** (rho / 2) * (flow / bounded if rho else 1)
        into, out = weight[:, None], bounded[None, :] ** (rho / 2)
        K = kappa / self.network.gamma_sq_by_paths(p)
        for name, product in [
            ("weight_ih_l0", into), ("weight_hh_l0", into * out), ("bias_ih_l0", weight),
            ("bias_hh_l0", weight),
            ("out.weight", out),
        ]:  # fmt: skip
            K[self.layout[name]] /= product
        K[self.layout["out.bias"]] = 1.0
        return K


def paper(reference, p):
    for _ in range(STEPS):
        p = p - 0.01 * reference.gradient(p) / reference.network.kappa1(p)
    return p


def both_terms(reference, p):
    for _ in range(STEPS):
        p = p - 0.01 * reference.gradient(p) / reference.network.kappa(p)
    return p


def flow(reference, p):
    for _ in range(STEPS):
        p = p - 0.05 * reference.gradient(p) / reference.metric(p, 1.0, reference.network.kappa1(p))
    return p


def absolute(reference, p):
    """Each mean of log(1/sqrt(K)) is that of its two sides at step 1; 0 for a recurrent matrix."""
    into = ["weight_ih_l0", "bias_ih_l0", "bias_hh_l0"]
    size = None
    for _ in range(STEPS):
        logs = -0.5 * np.log(reference.metric(p, 1.0, reference.network.kappa1(p)))
        if size is None:
            entering = np.concatenate(
                [logs[reference.layout[name]].ravel() for name in into]
            ).mean()
            size = (logs[reference.layout["out.weight"]].mean() - entering) / 2
        for names, mean in [(into, -size), (["weight_hh_l0"], 0.0), (["out.weight"], size)]:
            for index in (reference.layout[name] for name in names):
                logs[index] += mean - logs[index].mean()
        p = p - 0.05 * reference.gradient(p) * np.exp(2 * logs)
    return p


def clipped(reference, p):
    for _ in range(STEPS):
        root = np.sqrt(reference.metric(p, 0.0, reference.network.kappa1(p)))
        u = reference.gradient(p) / root
        p = (1 - 0.05 * 0.1) * p - 0.05 * u * min(1.0, 0.02 / np.linalg.norm(u)) / root
    return p


def momentum(reference, p, nesterov=False):
    m = np.zeros_like(p)
    for _ in range(STEPS):
        root = np.sqrt(reference.metric(p, 0.5, reference.network.kappa1(p)))
        u = reference.gradient(p) / root
        m = 0.9 * m + u
        p = p - 0.01 * (u + 0.9 * m if nesterov else m) / root
    return p


def adam(reference, p, rho=0.5):
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t in range(1, STEPS + 1):
        root = np.sqrt(reference.metric(p, rho, reference.network.kappa1(p)))
        u = reference.gradient(p) / root
        m, v = 0.8 * m + 0.2 * u, 0.95 * v + 0.05 * u**2
        p = p - 0.01 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6) / root
    return p


def adam_seldom_measured(reference, p):
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t in range(1, STEPS + 1):
        if t % 7 == 1:
            root = np.sqrt(reference.metric(p, 0.5, reference.network.kappa1(p)))
        u = reference.gradient(p) / root
        m, v = 0.8 * m + 0.2 * u, 0.95 * v + 0.05 * u**2
        p = p - 0.01 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6) / root
    return p


def adam_of_the_paper(reference, p):
    m, v = np.zeros_like(p), np.zeros_like(p)
    # PathAdam counts grad / kappa in units of 1 / gamma^2 at the first step, and so its eps.
    eps = np.full_like(p, 1e-6 / reference.network.gamma_sq_by_paths(p))
    for t in range(1, STEPS + 1):
        kappa = reference.network.kappa1(p)
        g = reference.gradient(p) / kappa
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        p = p - 0.01 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + eps)
    return p


ADAM = {"betas": (0.8, 0.95), "eps": 1e-6, "clip": None, "growth": None}
ROWS = {
    "the paper's rule": (paper, lambda m: PathSGD(m, 0.01, metric="paper")),
    "both terms": (both_terms, lambda m: PathSGD(m, 0.01, metric="paper", terms="both")),
    "path flow": (flow, lambda m: PathSGD(m, 0.05, metric="relative", clip=None, growth=None)),
    "absolute units": (absolute, lambda m: PathSGD(m, 0.05, clip=None, growth=None)),
    "clip and decay": (
        clipped,
        lambda m: PathSGD(m, 0.05, metric=Metric(0), clip=0.02, weight_decay=0.1, growth=None),
    ),
    "momentum": (
        momentum,
        lambda m: PathSGD(m, 0.01, momentum=0.9, metric=Metric(0.5), clip=None, growth=None),
    ),
    "nesterov": (
        lambda r, p: momentum(r, p, nesterov=True),
        lambda m: PathSGD(
            m, 0.01, momentum=0.9, nesterov=True, metric=Metric(0.5), clip=None, growth=None
        ),
    ),
    "PathAdam": (adam, lambda m: PathAdam(m, 0.01, metric=Metric(0.5), **ADAM)),
    "PathAdam, the paper's metric": (
        lambda r, p: adam(r, p, 0.0),
        lambda m: PathAdam(m, 0.01, metric=Metric(0), **ADAM),
    ),
    "Path-Adam as the paper has it": (
        adam_of_the_paper,
        lambda m: PathAdam(m, 0.01, metric="paper", **ADAM),
    ),
    "PathAdam seldom measured": (
        adam_seldom_measured,
        lambda m: PathAdam(m, 0.01, metric=Metric(0.5), refresh_every=7, **ADAM),
    ),
}


@pytest.mark.parametrize(("obvious", "make"), ROWS.values(), ids=ROWS)
def test_a_hundred_steps_equal_the_obvious_ones(setup, obvious, make):
    network, layout, model, x, y = setup
    start = pack(layout, {name: p.detach().numpy() for name, p in model.named_parameters()})
    expected = obvious(Reference(network, layout, x, y), start)
    optimizer = make(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    found = pack(layout, {name: p.detach().numpy() for name, p in model.named_parameters()})
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    assert np.abs(found - start).max() > 0.05

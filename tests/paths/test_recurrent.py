"""The closed form for plain recurrent nets against the general route; they share no code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathsgd import Metric
from pathsgd.arithmetic.recurrence import perron_root
from pathsgd.kernels import native
from pathsgd.kernels.squared_sequences import constant_input_states
from pathsgd.metric.flow import path_flow
from pathsgd.metric.geometry import Geometry, measure
from pathsgd.metric.whitening import inverse_metric
from pathsgd.network.record.record import record
from pathsgd.paths import recurrent as plain
from pathsgd.paths.gamma import log_gamma_sq
from pathsgd.paths.kappa import kappa
from pathsgd.paths.match import PlainNet, StackNet, match
from pathsgd.paths.recurrent import sequences
from support.kernels import BACKENDS


class Net(nn.Module):
    """[embedding ->] RNN -> linear, read out in the ways users write."""

    def __init__(
        self, readout: str, hidden: int = 5, vocabulary: int = 0, bias: bool = True
    ) -> None:
        super().__init__()
        self.readout = readout
        self.table = nn.Embedding(vocabulary, 3) if vocabulary else None
        self.rnn = nn.RNN(
            3, hidden, nonlinearity="relu", batch_first=readout.startswith("batch"), bias=bias
        )
        self.out = nn.Linear(hidden, 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.table is None else self.table(x)
        states, last = self.rnn(x)
        reads = {
            "last": lambda: last[0],
            "last of states": lambda: states[-1],
            "batch last": lambda: states[:, -1, :],
            "every": lambda: states,
            "every, flat": lambda: states.flatten(0, 1),
            "batch every": lambda: states.reshape(-1, states.shape[-1]),
        }
        return self.out(reads[self.readout]())


READOUTS = ["last", "last of states", "batch last", "every", "every, flat", "batch every"]


def make(
    readout: str, steps: int, gain: float, vocabulary: int = 0, hidden: int = 5, bias: bool = True
):
    torch.manual_seed(steps)
    net = Net(readout, hidden, vocabulary, bias).double()
    with torch.no_grad():
        net.rnn.weight_hh_l0.mul_(gain)
    x = (
        torch.zeros(steps, 4, dtype=torch.long)
        if vocabulary
        else torch.zeros(steps, 4, 3, dtype=torch.double)
    )
    return net, x.transpose(0, 1) if readout.startswith("batch") else x


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("vocabulary", [0, 7])
@given(steps=st.integers(1, 40), gain=st.sampled_from([0.3, 1.0, 4.0]), bias=st.booleans())
@settings(max_examples=8)
def test_closed_form_equals_general_route(
    readout: str, vocabulary: int, steps: int, gain: float, bias: bool
) -> None:
    net, x = make(readout, steps, gain, vocabulary, bias=bias)
    parameters = dict(net.named_parameters())
    matched = match(record(net, (x,)))
    assert isinstance(matched, PlainNet)
    assert matched.every_step == ("every" in readout or steps == 1) or steps == 1
    closed = plain.kappa1(matched, parameters)
    general = kappa(net, x, relative=True)
    for name, p in parameters.items():
        torch.testing.assert_close(
            closed.kappa1[name].expand_as(p), general[name], rtol=1e-9, atol=0
        )
    assert closed.log_gamma_sq == pytest.approx(float(log_gamma_sq(net, x)), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("vocabulary", [0, 7])
@pytest.mark.parametrize("terms", ["first", "both"])
@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_measurement_equals_general_route(
    readout: str, vocabulary: int, terms: str, steps: int
) -> None:
    net, x = make(readout, steps, 2.0, vocabulary)
    parameters = dict(net.named_parameters())
    geometry = Geometry(net)
    first = geometry.measure((x,), terms)
    fast = geometry.measure((x,), terms, root=first.next_root)
    known = geometry.structure((x,))
    assert known.plain is not None
    slow = measure(known.recording, parameters, known.spaces, terms)
    torch.testing.assert_close(
        path_flow(fast, parameters), path_flow(slow, parameters), rtol=1e-9, atol=0
    )
    ours, theirs = (inverse_metric(m, parameters, Metric(0.7)) for m in (fast, slow))
    for name, p in parameters.items():
        torch.testing.assert_close(
            ours[name].expand_as(p), theirs[name].expand_as(p), rtol=2e-6, atol=0
        )
    assert known.repeats == {"rnn.weight_hh_l0": steps}


def test_a_bad_guess_of_the_root_is_found_out() -> None:
    net, x = make("last", 3000, 4.0)
    matched = match(record(net, (x,)))
    assert isinstance(matched, PlainNet)
    parameters = dict(net.named_parameters())
    good, bad = plain.kappa1(matched, parameters), plain.kappa1(matched, parameters, root=1.0)
    assert math.isfinite(bad.log_gamma_sq) and bad.log_gamma_sq == pytest.approx(
        good.log_gamma_sq, rel=1e-12
    )


class Unlike(nn.Module):
    """Nets that look plain and are not; the general route must take them."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why
        self.rnn = nn.RNN(
            3, 3 if why == "tied" else 5, 2 if why == "deep" else 1, nonlinearity="relu"
        )
        self.out = nn.Linear(self.rnn.hidden_size, 3 if why == "tied" else 2)
        if why == "tied":
            self.out.weight = self.rnn.weight_hh_l0
        self.start = nn.Parameter(torch.ones(1, 1, 5)) if why == "learnt start" else None

    def forward(self, x: Tensor) -> Tensor:
        start = None if self.start is None else self.start.expand(1, x.shape[1], 5)
        if self.why == "padded input":
            x = nn.functional.pad(x, (0, 0, 0, 0, 1, 0))
        states, last = self.rnn(x, start)
        read = {
            "first step": lambda: states[0],
            "two steps": lambda: states[-2:],
            "mean": lambda: states.mean(0),
            "units in another order": lambda: last[0].flip(-1),
            "part of the output": lambda: states,
        }
        out = self.out(read.get(self.why, lambda: last[-1])())
        return out[-1] if self.why == "part of the output" else out


STACKS = ["deep", "first step"]  # paths/recurrent_stack.py
REASONS = [*STACKS, "tied", "learnt start", "two steps", "mean", "padded input"]
REASONS += ["units in another order", "part of the output"]


@pytest.mark.parametrize("why", REASONS)
def test_other_nets_do_not_match(why: str) -> None:
    net = Unlike(why).double()
    found = match(record(net, (torch.zeros(6, 2, 3, dtype=torch.double),)))
    assert isinstance(found, StackNet) if why in STACKS else found is None


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("block", [0, 1, 2, 8, 1024])
@given(hidden=st.integers(1, 12), steps=st.integers(1, 70), gain=st.floats(0.1, 3.0))
@settings(max_examples=10)
def test_doubling_equals_stepping(
    every_step: bool, block: int, hidden: int, steps: int, gain: float
) -> None:
    torch.manual_seed(hidden * 100 + steps)
    A = (gain * torch.randn(hidden, hidden, dtype=torch.double) / hidden**0.5).square()
    u = torch.rand(hidden, dtype=torch.double)
    root = max(1.0, perron_root(A, u, torch.ones_like(u)))
    x = constant_input_states(A / root, u, steps, 1 / root, accumulate=every_step, block=block)
    rows, state = [], torch.zeros_like(u)
    for step in range(steps):
        state = A @ state / root + (u * root**-step if every_step or step == 0 else 0)
        rows.append(state)
    torch.testing.assert_close(x, torch.stack(rows), rtol=1e-9, atol=1e-290)


@pytest.mark.parametrize("every_step", [False, True])
def test_native_and_torch_sequences_agree(
    every_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    weight, u, v = (torch.randn(*s, dtype=torch.double) for s in ((37, 37), (37,), (37,)))
    ours = sequences(weight, u.square(), v.square(), 50, every_step=every_step)
    monkeypatch.setattr(native, "load", lambda: BACKENDS["torch"])
    fallback = sequences(weight, u.square(), v.square(), 50, every_step=every_step)
    for a, b in zip(ours[:2], fallback[:2]):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=0)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_sums_of_a_badly_scaled_net_are_its_twin_s_in_every_bit(
    readout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where its own numbers lie too far apart to be trusted; and right, by float64."""
    net, x = make(readout, 40, 1.0, hidden=12)
    net = net.float()
    closed = match(record(net, (x.float(),)))
    assert isinstance(closed, PlainNet)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    a = torch.tensor([2.0**k for k in (14, -14, 9, 0, -3, 12, -11, 1, 5, -8, 13, -13)])
    twin = dict(weights)
    for name in (closed.w_in, closed.w_rec, *closed.biases):
        twin[name] = weights[name] * (a if weights[name].dim() == 1 else a[:, None])
    twin[closed.w_rec], twin[closed.w_out] = twin[closed.w_rec] / a, weights[closed.w_out] / a
    tried = []
    balanced = plain._balanced_sums
    monkeypatch.setattr(plain, "_balanced_sums", lambda *given: tried.append(1) or balanced(*given))
    ours, theirs = (plain.kappa1(closed, w, exact=False) for w in (weights, twin))
    assert tried == [1], "the twin, and only the twin"
    square = a.double().square()
    back = {closed.w_rec: theirs.kappa1[closed.w_rec].double() * square[:, None] / square}
    back[closed.w_out] = theirs.kappa1[closed.w_out] / square
    back.update({name: theirs.kappa1[name] * square for name in closed.biases})
    for name, found in back.items():
        assert torch.equal(found, ours.kappa1[name].to(found)), name
    exact = plain.kappa1(closed, twin)
    for name, found in theirs.kappa1.items():
        torch.testing.assert_close(found.double(), exact.kappa1[name].double(), rtol=1e-5, atol=0)

"""Several recurrent layers in closed form against the general route."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathsgd
from pathsgd.kernels.whiten import dense
from pathsgd.metric.choice import Metric
from pathsgd.metric.flow import path_flow
from pathsgd.metric.geometry import Geometry, measure
from pathsgd.metric.whitening import whitenings
from pathsgd.paths import recurrent_stack as stack
from pathsgd.paths.match import PlainNet, StackNet

READS = ("last output", "every output", "final states", "first output")


class Net(nn.Module):
    """A recurrent net whose output layer reads one thing or another."""

    def __init__(
        self, hidden: int, read: str, vocabulary: int = 0, outputs: int = 2, **options: object
    ) -> None:
        super().__init__()
        self.read, self.table = read, nn.Embedding(vocabulary, 3) if vocabulary else None
        self.rnn = nn.RNN(3, hidden, nonlinearity="relu", **options)  # type: ignore[arg-type]
        self.out = nn.Linear(hidden * (1 + self.rnn.bidirectional), outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.rnn(x if self.table is None else self.table(x))
        steps = states.transpose(0, 1) if self.rnn.batch_first else states
        if self.read == "final states":
            return self.out(torch.cat(tuple(last[-2:]), -1) if self.rnn.bidirectional else last[-1])
        return self.out(
            {"last output": steps[-1], "first output": steps[0], "every output": states}[self.read]
        )


def make(
    steps: int,
    hidden: int,
    read: str,
    *,
    gain: float = 1.0,
    spread: float = 1.0,
    vocabulary: int = 0,
    **options: object,
) -> tuple[Net, Tensor]:
    """A net with a gain on its recurrent matrices and units scaled by up to `spread` and back."""
    torch.manual_seed(steps + hidden)
    net = Net(hidden, read, vocabulary, **options)
    shape = (2, steps) if net.rnn.batch_first else (steps, 2)
    x = torch.randint(vocabulary, shape) if vocabulary else torch.rand(*shape, 3)
    with torch.no_grad():
        for name, p in net.rnn.named_parameters():
            if name.startswith("weight_hh"):
                p.normal_(0, gain * hidden**-0.5)
    if spread > 1:
        pathsgd.random_rescaling(
            net, x, low=1 / spread, high=spread, generator=torch.Generator().manual_seed(1)
        )
    return net, x


def compare(net: Net, x: Tensor, rtol: float, *, closed: bool = True) -> torch.dtype | None:
    """Both routes, twice: the second measurement starts from the root of the first."""
    geometry, root = Geometry(net), None
    parameters = dict(net.named_parameters())
    known = geometry.structure((x,))
    assert isinstance(known.plain, StackNet)
    found = stack.kappa1(known.plain, parameters, None)
    assert (found is not None) == closed
    slow = measure(known.recording, parameters, known.spaces)
    for _ in range(2):
        fast = geometry.measure((x,), exact=False, root=root)
        root = fast.next_root
        assert fast.log_gamma_sq == pytest.approx(slow.log_gamma_sq, rel=1e-6, abs=1e-4)
        assert fast.kappa.keys() <= slow.kappa.keys()
        assert not any(
            bool(dense(slow.kappa[name]).any()) for name in slow.kappa.keys() - fast.kappa.keys()
        )
        for name in fast.kappa:
            kappa = slow.kappa[name]
            slack = (
                1e-4 if name == "out.bias" and rtol > 1e-8 else 0.0
            )  # 1 / gamma^2: errors of all steps add up
            close = dense(fast.kappa[name]).double().expand_as(parameters[name])
            torch.testing.assert_close(close, dense(kappa), rtol=rtol + slack, atol=0)
        if (
            net.rnn.hidden_size > 1
        ):  # the general route leaves out a matrix of one unit: no rescaling changes it
            torch.testing.assert_close(
                path_flow(fast, parameters), path_flow(slow, parameters), rtol=rtol, atol=1e-30
            )
    return None if found is None else found.dtype


@settings(max_examples=60)
@given(
    steps=st.sampled_from([1, 2, 7, 60]),
    hidden=st.sampled_from([1, 3, 8, 20]),
    read=st.sampled_from(READS),
    options=st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 3),
            "bidirectional": st.booleans(),
            "bias": st.booleans(),
            "batch_first": st.booleans(),
            "vocabulary": st.sampled_from([0, 5]),
            "gain": st.sampled_from([0.3, 1.0, 1.5]),
            "spread": st.sampled_from([1.0, 100.0, 1e6]),
        }
    ),
    is_double=st.booleans(),
)
def test_both_routes_agree(
    steps: int, hidden: int, read: str, options: dict[str, object], is_double: bool
) -> None:
    net, x = make(steps, hidden, read, **options)  # type: ignore[arg-type]
    if (
        options["num_layers"] == 1
        and not options["bidirectional"]
        and (read != "first output" or steps == 1)
    ):
        assert isinstance(Geometry(net).structure((x,)).plain, PlainNet)
        return
    if is_double:
        net, x = net.double(), x if options["vocabulary"] else x.double()
    compare(net, x, 1e-9 if is_double else 3e-5)


@pytest.mark.parametrize("gain", [0.5, 3.0])
@pytest.mark.parametrize("steps", [1024, 5000])
def test_long_sequences(gain: float, steps: int) -> None:
    """One direction has a scale; of two no number may leave the range."""
    compare(*make(steps, 6, "last output", gain=gain, num_layers=2), rtol=3e-5)
    compare(
        *make(steps, 6, "last output", gain=gain, bidirectional=True), rtol=3e-5, closed=gain < 3
    )


def test_what_float32_cannot_hold_is_measured_in_float64() -> None:
    options = {"num_layers": 2}
    assert compare(*make(30, 6, "last output", **options), rtol=3e-5) is torch.float32
    assert compare(*make(30, 6, "last output", spread=1e9, **options), rtol=3e-5) is torch.float64
    assert compare(*make(30, 6, "last output", bidirectional=True), rtol=3e-5) is torch.float32


def test_zeros_are_zeros() -> None:
    net, x = make(20, 6, "last output", num_layers=2)
    with torch.no_grad():
        for name in ("weight_ih_l1", "weight_hh_l1", "bias_ih_l1", "bias_hh_l1"):
            net.rnn.get_parameter(name)[2] = 0
        net.rnn.weight_hh_l0[:, 1] = 0
    compare(net, x, rtol=3e-5)


class Twice(Net):
    """The output layer reads two steps."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][[0, -1]])


class Between(Net):
    """It reads the final states of another layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[1][0])


class Mixed(Net):
    """Half of a direction's units are read at another step."""

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.out(torch.cat([states[0][:, :3], states[-1][:, 3:]], -1))


class Padded(Net):
    """A part of what enters is constant."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(torch.cat([x[..., :2], torch.zeros(*x.shape[:2], 1)], -1))[0][-1])


@pytest.mark.parametrize("kind", [Twice, Between, Mixed, Padded])
def test_other_nets_take_the_general_route(kind: type[Net]) -> None:
    net, x = kind(6, "", num_layers=2), torch.rand(5, 2, 3)
    assert Geometry(net).structure((x,)).plain is None


def test_shared_cells_take_the_general_route() -> None:
    net, x = Net(3, "last output", num_layers=2), torch.rand(5, 2, 3)
    net.rnn.weight_hh_l1 = net.rnn.weight_hh_l0
    assert Geometry(net).structure((x,)).plain is None


@pytest.mark.parametrize(
    "options", [{"num_layers": 2}, {"bidirectional": True}], ids=["deep", "both directions"]
)
def test_biases_are_held_back_on_either_route(options: dict[str, object]) -> None:
    net, x = make(9, 5, "last output", **options)
    net(x).square().mean().backward()
    parameters, geometry = dict(net.named_parameters()), Geometry(net)
    known = geometry.structure((x,))
    fast, slow = (
        geometry.measure((x,), exact=False),
        measure(known.recording, parameters, known.spaces),
    )
    one, two = (whitenings(measured, parameters, Metric()) for measured in (fast, slow))
    for name in fast.kappa:
        p = parameters[name]
        torch.testing.assert_close(
            dense(one[name]).expand_as(p), dense(two[name]).expand_as(p), rtol=1e-4, atol=0
        )
    assert math.isfinite(fast.log_gamma_sq)


@pytest.mark.parametrize(
    "options", [{"num_layers": 2}, {"bidirectional": True}], ids=["two layers", "both directions"]
)
def test_flow_is_laid_end_to_end_where_units_are_numbered_so(options: dict[str, object]) -> None:
    net, x = Net(4, "every output", **options), torch.rand(6, 2, 3)
    measured, parameters = Geometry(net).measure([x], exact=False), dict(net.named_parameters())
    assert measured.spaces.are_all_in_order(tuple(measured.flow))
    found = path_flow(measured, parameters)
    measured.spaces._cache[tuple(measured.flow)] = False
    assert torch.equal(found, path_flow(measured, parameters))
    assert not measured.spaces.are_all_in_order(tuple(reversed(list(measured.flow))))

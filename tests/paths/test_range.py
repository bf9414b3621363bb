"""No overflow, underflow or loss of digits at any length: checked by unbounded decimals."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.network.record.record import record
from pathsgd.paths.kappa import Kappa
from support import models

LONG = 20_000
Series = tuple[Decimal, Decimal, Decimal]
"""A value and its first and second derivative in one entry of q."""
ZERO: Series = (Decimal(0),) * 3


@pytest.fixture(autouse=True)
def unlimited_decimals() -> Any:
    with decimal.localcontext(prec=30, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN):
        yield


def product(a: Series, b: Series) -> Series:
    return a[0] * b[0], a[1] * b[0] + a[0] * b[1], a[2] * b[0] + 2 * a[1] * b[1] + a[0] * b[2]


def total(terms: list[Series]) -> Series:
    return tuple(sum(column, Decimal(0)) for column in zip(*terms)) if terms else ZERO  # type: ignore[return-value]


class DecimalRNN:
    """The squared network of models.ReadRNN, a series per unit; derivative in q[name][index]."""

    def __init__(self, net: models.ReadRNN, name: str, index: tuple[int, ...]) -> None:
        self.net, self.q = net, {}
        for parameter, value in net.named_parameters():
            squares = {
                i: (Decimal(float(v)) ** 2, Decimal(0), Decimal(0)) for i, v in entries(value)
            }
            if parameter == name:
                squares[index] = (squares[index][0], Decimal(1), Decimal(0))
            self.q[parameter] = squares

    def apply(self, name: str, x: list[Series], size: int) -> list[Series]:
        return [
            total([product(self.q[name][o, i], value) for i, value in enumerate(x)])
            for o in range(size)
        ]

    def layer(self, below: list[list[Series]], suffix: str) -> list[list[Series]]:
        size, h, states = self.net.hidden_size, [ZERO] * self.net.hidden_size, []
        for x in below:
            inside = zip(
                self.apply(f"weight_ih_{suffix}", x, size),
                self.apply(f"weight_hh_{suffix}", h, size),
            )
            h = [total(list(pair)) for pair in inside]
            if self.net.bias:
                biases = [self.q[f"bias_{kind}_{suffix}"] for kind in ("ih", "hh")]
                h = [total([value, *(b[(j,)] for b in biases)]) for j, value in enumerate(h)]
            states.append(h)
        return states

    def run(self, steps: int) -> Series:
        below = [[(Decimal(1), Decimal(0), Decimal(0))] * self.net.input_size] * steps
        for k in range(self.net.num_layers):
            states = self.layer(below, f"l{k}")
            if self.net.bidirectional:
                back = self.layer(below[::-1], f"l{k}_reverse")[::-1]
                states = [a + b for a, b in zip(states, back)]
            below = states
        read = below if self.net.every_step else below[-1:]
        size = self.net.out.out_features
        offset = [self.q["out.bias"][(j,)] for j in range(size)] if self.net.bias else []
        return total([y for h in read for y in (*self.apply("out.weight", h, size), *offset)])


def entries(value: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    return [(tuple(i), value.detach()[tuple(i)]) for i in (value == value).nonzero().tolist()]


def assert_right(net: models.ReadRNN, steps: int, entry: dict[str, tuple[int, ...]]) -> None:
    """log gamma^2 and relative kappas of some entries against decimals."""
    shape = (1, steps, net.input_size) if net.batch_first else (steps, 1, net.input_size)
    x = torch.ones(*shape, dtype=torch.float64)
    log_gamma_sq = float(pathsgd.log_gamma_sq(net, x))
    first = pathsgd.kappa(net, x, relative=True)
    both = pathsgd.kappa(net, x, terms="both", relative=True)
    parameters = dict(net.named_parameters())
    for name, index in entry.items():
        g, dg, ddg = DecimalRNN(net, name, index).run(steps)
        q = Decimal(float(parameters[name].detach()[index])) ** 2
        assert log_gamma_sq == pytest.approx(float(g.ln()), rel=1e-12)
        assert float(first[name][index]) == pytest.approx(float(dg / g), rel=1e-8)
        assert float(both[name][index]) == pytest.approx(float((dg + 2 * q * ddg) / g), rel=1e-8)
    assert all(bool(k.isfinite().all()) for k in (*first.values(), *both.values()))


def he_initialised(**options: Any) -> models.ReadRNN:
    torch.manual_seed(1)
    net = models.ReadRNN(1, 2, 1, **{"bias": False, **options}).double()
    for name, p in net.named_parameters():
        if "weight" in name:
            nn.init.kaiming_normal_(p, nonlinearity="relu")
    return net


def test_an_rnn_of_twenty_thousand_steps() -> None:
    net = he_initialised()
    assert_right(net, LONG, {"weight_hh_l0": (0, 1), "weight_ih_l0": (1, 0), "out.weight": (0, 1)})
    assert pathsgd.gamma_sq(net, torch.ones(LONG, 1, 1, dtype=torch.float64)) == torch.inf


def test_every_step_is_read() -> None:
    assert_right(
        he_initialised(every_step=True, bias=True),
        4000,
        {"weight_hh_l0": (1, 1), "bias_ih_l0": (0,)},
    )


def test_two_layers() -> None:
    net = he_initialised(num_layers=2)
    assert_right(
        net, 4000, {"weight_hh_l0": (0, 0), "weight_ih_l1": (0, 1), "weight_hh_l1": (1, 0)}
    )


def test_two_directions_whose_growth_makes_a_valley_in_time() -> None:
    """Both directions grow from their start: the layer above sees most at both ends."""
    net = he_initialised(num_layers=2, bidirectional=True, every_step=True)
    with torch.no_grad():
        net.weight_hh_l1.mul_(0.05)
    assert_right(
        net, 2000, {"weight_hh_l0_reverse": (0, 1), "weight_hh_l1": (1, 0), "out.weight": (0, 3)}
    )


def test_shrinking_states() -> None:
    net = he_initialised()
    with torch.no_grad():
        net.weight_hh_l0.mul_(0.01)
    assert_right(net, 3000, {"weight_hh_l0": (0, 1), "weight_ih_l0": (0, 0)})


@pytest.mark.parametrize(
    "matrix",
    {
        "periodic": [[0.0, 4.0], [0.25, 0.0]],
        "growing and periodic": [[0.0, 40.0], [0.3, 0.0]],
        "nilpotent": [[0.0, 3.0], [0.0, 0.0]],
        "a slow unit feeding a fast one": [[1.05, 0.0], [1e-60, 1.6]],
        "a chain without end": [[1.0, 0.0], [1.0, 1.0]],
    }.items(),
    ids=lambda item: item[0],
)
def test_growth_that_is_no_straight_line(matrix: tuple[str, list[list[float]]]) -> None:
    net = he_initialised()
    with torch.no_grad():
        net.weight_hh_l0.copy_(torch.tensor(matrix[1], dtype=torch.float64))
        net.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0]]))
    assert_right(net, 4000, {"weight_hh_l0": (0, 1), "out.weight": (0, 0), "weight_ih_l0": (0, 0)})


def test_a_unit_that_nothing_reaches_spoils_nothing() -> None:
    """It would grow by 9 a step if anything came in; its neighbours and gamma^2 do not notice."""
    net = he_initialised()
    with torch.no_grad():
        net.weight_hh_l0.copy_(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        net.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0]]))
    x = torch.ones(2000, 1, 1, dtype=torch.float64)
    living = float(net.out.weight[0, 0]) ** 2
    assert float(pathsgd.gamma_sq(net, x)) == pytest.approx(2000 * living, rel=1e-12)
    kappa = pathsgd.kappa(net, x, terms="both", relative=True)
    assert float(kappa["weight_ih_l0"][0, 0]) == pytest.approx(1.0, rel=1e-12)
    assert not any(bool(k.isnan().any()) for k in kappa.values())


def test_a_hand_written_loop_of_a_thousand_steps() -> None:
    torch.manual_seed(0)
    loop, layer = models.HandLoop(1, 2, 1).double(), he_initialised()
    with torch.no_grad():
        for source, target in ((layer.weight_ih_l0, loop.w_in), (layer.weight_hh_l0, loop.w_rec)):
            target.copy_(source)
        loop.w_rec.mul_(2)
        layer.weight_hh_l0.mul_(2)
        loop.w_out.copy_(layer.out.weight)
    x = torch.ones(1000, 1, 1, dtype=torch.float64)
    found, wanted = (
        Kappa(record(net, (x,)), dict(net.named_parameters())) for net in (loop, layer)
    )
    assert float(wanted.total.log()) > 1000  # e^709 is the largest float64
    torch.testing.assert_close(found.total.log(), wanted.total.log(), rtol=1e-12, atol=0)
    scale = wanted.total.mantissa / found.total.mantissa
    for mine, other in ((found.first(), wanted.first()), (found.second(), wanted.second())):
        for name, same in {
            "w_in": "weight_ih_l0",
            "w_rec": "weight_hh_l0",
            "w_out": "out.weight",
        }.items():
            torch.testing.assert_close(mine[name] * scale, other[same], rtol=1e-8, atol=0)


@pytest.mark.parametrize("factor", [1e150, 1e-150])
def test_very_large_and_very_small_weights(factor: float) -> None:
    """gamma^2 of three layers goes with the sixth power of the weights, kappa with the fourth."""
    torch.manual_seed(0)
    net, x = models.mlp([2, 3, 3, 1], bias=False).double(), torch.ones(1, 2, dtype=torch.float64)
    before, kappa = pathsgd.log_gamma_sq(net, x), pathsgd.kappa(net, x, relative=True)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(factor)
    log = torch.tensor(factor, dtype=torch.float64).log()
    torch.testing.assert_close(pathsgd.log_gamma_sq(net, x), before + 6 * log, rtol=1e-12, atol=0)
    for name, value in pathsgd.kappa(net, x, relative=True).items():
        torch.testing.assert_close(value, kappa[name] / factor**2, rtol=1e-10, atol=0)
    assert pathsgd.gamma_sq(net, x) == (torch.inf if factor > 1 else 0)
    assert pathsgd.path_norm(net, x) == (torch.inf if factor > 1 else 0)


def test_gamma_overflows_only_where_its_value_does() -> None:
    """A wide range inside, an ordinary value outside: 1e120 and 1e-120 in turn."""
    net, x = models.mlp([1, 1, 1, 1, 1], bias=False).double(), torch.ones(1, 1, dtype=torch.float64)
    with torch.no_grad():
        for p, value in zip(net.parameters(), (1e120, 1e120, 1e-120, 1e-120)):
            p.fill_(value)
    assert float(pathsgd.gamma_sq(net, x)) == pytest.approx(1.0, rel=1e-12)
    kappa = pathsgd.kappa(net, x)
    assert float(kappa["0.weight"]) == pytest.approx(1e-240, rel=1e-12)
    assert float(kappa["6.weight"]) == pytest.approx(1e240, rel=1e-12)


def test_output_weights_of_zero() -> None:
    """gamma^2 is zero; kappa of the output weights is what comes in, all others are zero."""
    net, x = he_initialised(), torch.ones(5, 1, 1, dtype=torch.float64)
    with torch.no_grad():
        expected = pathsgd.kappa(net, x)["out.weight"]
        net.out.weight.zero_()
    assert pathsgd.gamma_sq(net, x) == 0
    assert pathsgd.log_gamma_sq(net, x) == -torch.inf
    kappa = pathsgd.kappa(net, x, terms="both")
    torch.testing.assert_close(kappa["out.weight"], expected, rtol=1e-12, atol=0)
    assert all(bool((value == 0).all()) for name, value in kappa.items() if name != "out.weight")
    with pytest.raises(ValueError, match=r"gamma\^2 is zero"):
        pathsgd.kappa(net, x, relative=True)

"""Loops made recurrent layers: the same quantities as those of the loop written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathsgd.network.record.record import record
from pathsgd.network.recurrences import rolled
from pathsgd.paths.kappa import Kappa
from pathsgd.paths.match import match

UNITS, INPUTS, STEPS = 5, 3, 6


class Loop(nn.Module):
    """A hand-written loop; `turn` makes the next state of x_t and the last one."""

    def __init__(
        self, turn: Callable[[Loop, Tensor, Tensor], Tensor], *, every: bool = False, time: int = 0
    ) -> None:
        super().__init__()
        self.turn, self.every, self.time = turn, every, time
        self.into, self.rec, self.out = (
            nn.Linear(INPUTS, UNITS),
            nn.Linear(UNITS, UNITS),
            nn.Linear(UNITS, 2),
        )
        self.back = nn.Linear(UNITS, INPUTS)
        self.cell = nn.RNNCell(INPUTS, UNITS, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1 - self.time], UNITS)
        outputs = []
        for t in range(x.shape[self.time]):
            h = self.turn(self, x[t] if self.time == 0 else x[:, t], h)
            outputs.append(self.out(h))
        return torch.stack(outputs) if self.every else outputs[-1]


TURNS: dict[str, Callable[[Loop, Tensor, Tensor], Tensor]] = {
    "two layers": lambda m, x, h: torch.relu(m.into(x) + m.rec(h)),
    "the other way round": lambda m, x, h: (m.rec(h) + m.into(x)).relu(),
    "products": lambda m, x, h: torch.relu(
        x @ m.into.weight.T + h @ m.rec.weight.t() + m.into.bias
    ),
    "no biases": lambda m, x, h: torch.relu(x @ m.into.weight.T + h @ m.rec.weight.T),
    "a cell": lambda m, x, h: m.cell(x, h),
}
OTHERS: dict[str, Callable[[Loop, Tensor, Tensor], Tensor]] = {
    "leaky": lambda m, x, h: 0.5 * h + 0.5 * torch.relu(m.into(x) + m.rec(h)),
    "its input depends on the state": lambda m, x, h: torch.relu(m.into(x + m.back(h)) + m.rec(h)),
    "two matrices in a row": lambda m, x, h: torch.relu(m.into(x) + m.rec(m.rec(h))),
    "the matrix turned": lambda m, x, h: torch.relu(m.into(x) + h @ m.rec.weight),
}


def both(model: nn.Module, x: Tensor) -> tuple[Kappa, Kappa]:
    recording, parameters = record(model, (x,)), dict(model.named_parameters())
    return Kappa(recording, parameters), Kappa(rolled(recording), parameters)


def inputs(time: int) -> Tensor:
    return torch.rand((STEPS, 2, INPUTS) if time == 0 else (2, STEPS, INPUTS), dtype=torch.float64)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("time", [0, 1])
def test_kappa_of_both_terms_is_that_of_the_loop(turn, every: bool, time: int) -> None:
    torch.manual_seed(0)
    model = Loop(turn, every=every, time=time).double()
    loop, layer = both(model, inputs(time))
    assert "rnn_relu" in [step.operation for step in layer.recording.steps]
    assert float(layer.total.log()) == pytest.approx(float(loop.total.log()), abs=1e-12)
    for one, other in ((loop.first(), layer.first()), (loop.second(), layer.second())):
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-9, atol=1e-14, msg=name)


class Two(nn.Module):
    """Two loops: one above the other, turn by turn or one after the other; or side by side."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        below = INPUTS if how == "side by side" else UNITS
        self.cell = nn.RNNCell(INPUTS, UNITS, nonlinearity="relu")
        self.into, self.rec = nn.Linear(below, UNITS), nn.Linear(UNITS, UNITS)
        self.out = nn.Linear(UNITS, 2)

    def upper(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.relu(self.into(x) + self.rec(h))

    def forward(self, x: Tensor) -> Tensor:
        one = two = x.new_zeros(x.shape[1], UNITS)
        if self.how == "one after the other":
            states = [one := self.cell(x_t, one) for x_t in x]
            for state in states:
                two = self.upper(state, two)
            return self.out(two)
        for x_t in x:
            one = self.cell(x_t, one)
            two = self.upper(x_t if self.how == "side by side" else one, two)
        return self.out(one + two) if self.how == "side by side" else self.out(two)


@pytest.mark.parametrize("how", ["turn by turn", "one after the other", "side by side"])
def test_two_loops_are_two_layers(how: str) -> None:
    torch.manual_seed(0)
    model = Two(how).double()
    loop, layer = both(model, inputs(0))
    assert [step.operation for step in layer.recording.steps].count("rnn_relu") == 2
    assert float(layer.total.log()) == pytest.approx(float(loop.total.log()), abs=1e-12)
    for one, other in ((loop.first(), layer.first()), (loop.second(), layer.second())):
        for name in one:
            torch.testing.assert_close(other[name], one[name], rtol=1e-9, atol=1e-14, msg=name)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())
def test_a_plain_loop_gets_the_closed_form(turn) -> None:
    found = match(rolled(record(Loop(turn), (inputs(0).float(),))))
    assert found is not None and found.steps == STEPS


@pytest.mark.parametrize("turn", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_layer_stays_a_loop(turn) -> None:
    recording = record(Loop(turn), (inputs(0).float(),))
    assert [s.operation for s in rolled(recording).steps] == [s.operation for s in recording.steps]


@pytest.mark.parametrize("time", [0, 1])
def test_a_loop_over_the_steps_themselves(time: int) -> None:
    class Over(Loop):
        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[1 - self.time], UNITS)
            for x_t in x if self.time == 0 else x.unbind(1):
                h = self.turn(self, x_t, h)
            return self.out(h)

    recording = rolled(record(Over(TURNS["two layers"], time=time), (inputs(time).float(),)))
    found = match(recording)
    assert found is not None and found.steps == STEPS


def test_a_learnt_start_stays_a_loop() -> None:
    class Learnt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.rand(1, UNITS))
            self.cell, self.out = (
                nn.RNNCell(INPUTS, UNITS, nonlinearity="relu"),
                nn.Linear(UNITS, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.start.expand(x.shape[1], -1)
            for x_t in x:
                h = self.cell(x_t, h)
            return self.out(h)

    loop, layer = both(Learnt().double(), inputs(0))
    for name, kappa1 in loop.first().items():
        torch.testing.assert_close(layer.first()[name], kappa1, rtol=1e-9, atol=0)

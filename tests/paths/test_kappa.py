"""kappa2 by every route: closed form, automatic differentiation, the estimate from random signs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd.network.record.record import record
from pathsgd.network.sharing import parameters_shared_along_paths, uses
from pathsgd.paths.kappa import Kappa
from support import models
from support.cases import CASES

DOUBLE = torch.float64


def loop() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return models.HandLoop(2, 3, 1).double(), torch.rand(4, 1, 2, dtype=DOUBLE)


class Leaky(models.HandLoop):
    """A loop that is no recurrent layer: its kappa2 has no closed form."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], self.w_rec.shape[0], dtype=x.dtype)
        for x_t in x:
            h = 0.5 * h + torch.relu(x_t @ self.w_in.t() + h @ self.w_rec.t())
        return h @ self.w_out.t()


def leaky() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Leaky(2, 3, 1).double(), torch.rand(4, 1, 2, dtype=DOUBLE)


def test_the_estimate_is_unbiased() -> None:
    """Its mean over many draws is the exact second term, within 5 standard errors everywhere."""
    net, x = loop()
    measured = Kappa(record(net, (x,)), dict(net.named_parameters()))
    exact = measured.second()["w_rec"]
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [measured.second(samples=1, generator=generator)["w_rec"] for _ in range(400)]
    )
    error = draws.std(0) / 20
    assert bool((error > 0).all())
    assert bool(((draws.mean(0) - exact).abs() < 5 * error).all())


def test_more_samples_are_the_mean_of_single_ones() -> None:
    net, x = leaky()
    one, three = (torch.Generator().manual_seed(7) for _ in range(2))
    singles = [
        pathsgd.kappa(net, x, terms="second", samples=1, generator=one)["w_rec"] for _ in range(3)
    ]
    together = pathsgd.kappa(net, x, terms="second", samples=3, generator=three)["w_rec"]
    torch.testing.assert_close(together, torch.stack(singles).mean(0), rtol=1e-12, atol=1e-12)


def test_the_generator_decides_the_draw() -> None:
    net, x = leaky()
    draws = [
        pathsgd.kappa(
            net, x, terms="second", samples=1, generator=torch.Generator().manual_seed(seed)
        )["w_rec"]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_samples_do_not_touch_what_has_a_closed_form() -> None:
    net, x = models.ReadRNN(2, 3, 1, num_layers=2).double(), torch.rand(5, 1, 2, dtype=DOUBLE)
    exact, sampled = (
        pathsgd.kappa(net, x, terms="second", samples=samples) for samples in (None, 1)
    )
    assert all(torch.equal(exact[name], sampled[name]) for name in exact)


@pytest.mark.parametrize(
    ("name", "recurrent", "general"),
    [
        ("mlp", set(), set()),
        ("deep rnn", {"weight_hh_l0", "weight_hh_l1"}, set()),
        ("hand-written loop", set(), {"w_rec"}),
        ("rnn cell in a loop", set(), {"cell.weight_hh"}),
        ("chain", set(), {"shared", "others"}),
        ("tied autoencoder", set(), {"weight"}),
        ("tied language model", {"rnn.weight_hh_l0"}, {"embedding.weight"}),
        ("a layer called twice", set(), {"layer.weight"}),
        ("slices of one weight", set(), {"a"}),
    ],
)
def test_sharing_along_paths_is_found_where_it_is(
    name: str, recurrent: set[str], general: set[str]
) -> None:
    case = CASES[name]
    shared = parameters_shared_along_paths(record(case.build(name), case.examples()))
    assert (shared.recurrent, shared.general) == (recurrent, general)


class TwoPasses(nn.Module):
    """One RNN run twice: side by side (no path through both), or one after the other."""

    def __init__(self, chained: bool) -> None:
        super().__init__()
        self.rnn, self.chained = nn.RNN(2, 2, nonlinearity="relu"), chained

    def forward(self, x: Tensor) -> Tensor:
        first = self.rnn(x)[0]
        return self.rnn(first)[0] if self.chained else first + self.rnn(2 * x)[0]


@pytest.mark.parametrize("chained", [False, True])
def test_one_rnn_run_twice(chained: bool) -> None:
    from support.oracles import kappa as oracle

    torch.manual_seed(0)
    net, ones = TwoPasses(chained).double(), torch.ones(3, 1, 2, dtype=DOUBLE)
    twin = lambda q: torch.func.functional_call(net, q, (ones,)).sum()  # noqa: E731
    if not chained:  # the factor 2 is an edge of fixed weight, squared like any other
        single = nn.RNN(2, 2, nonlinearity="relu").double()
        prefixed = {f"rnn.{name}": name for name, _ in single.named_parameters()}
        twin = lambda q: sum(  # noqa: E731
            torch.func.functional_call(
                single, {prefixed[n]: v for n, v in q.items()}, (scale * ones,)
            )[0].sum()
            for scale in (1, 4)
        )
    expected = oracle(twin, dict(net.named_parameters()))
    for name, value in pathsgd.kappa(net, ones, terms="both").items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=0)


def test_uses_are_counted() -> None:
    def count(name: str) -> dict[str, int]:
        return uses(record(CASES[name].build(name), CASES[name].examples()))

    assert count("mlp")["0.weight"] == 1
    assert count("rnn")["weight_hh_l0"] == 4
    assert count("hand-written loop") == {"w_in": 3, "w_rec": 3, "w_out": 3}
    assert count("tied autoencoder") == {"weight": 2, "bias": 1}
    assert count("a layer called twice")["layer.weight"] == 2

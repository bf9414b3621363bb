"""Library = automatic differentiation = path enumeration for every case; each rule has a case."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import pathsgd
from oracle import pack, unpack
from pathsgd.network.record.record import record
from pathsgd.network.rules import RULES
from support import oracles
from support.cases import CASES, Case

RELATIVE = 1e-9


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Case, nn.Module]:
    chosen = CASES[request.param]
    return chosen, chosen.build(request.param)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name],
            torch.as_tensor(value),
            rtol=RELATIVE,
            atol=0,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_the_library_equals_automatic_differentiation(case: tuple[Case, nn.Module]) -> None:
    chosen, model = case
    inputs, parameters = chosen.examples(), dict(model.named_parameters())
    g = chosen.oracle(model)
    expected = oracles.gamma_sq(g, parameters)
    torch.testing.assert_close(pathsgd.gamma_sq(model, *inputs), expected, rtol=RELATIVE, atol=0)
    torch.testing.assert_close(
        pathsgd.log_gamma_sq(model, *inputs), expected.log(), rtol=RELATIVE, atol=RELATIVE
    )
    torch.testing.assert_close(
        pathsgd.path_norm(model, *inputs), expected.sqrt(), rtol=RELATIVE, atol=0
    )
    first, both = oracles.kappa1(g, parameters), oracles.kappa(g, parameters)
    assert_same(pathsgd.kappa(model, *inputs), first)
    assert_same(pathsgd.kappa(model, *inputs, terms="both"), both)
    assert_same(
        pathsgd.kappa(model, *inputs, terms="both", relative=True),
        {n: k / expected for n, k in both.items()},
    )


ENUMERABLE = [name for name, chosen in CASES.items() if chosen.reference is not None]


@pytest.mark.parametrize("name", ENUMERABLE)
def test_the_library_equals_path_enumeration(name: str) -> None:
    chosen = CASES[name]
    model = chosen.build(name)
    assert chosen.reference is not None
    network, layout = chosen.reference()
    p = pack(layout, {n: v.detach().numpy() for n, v in model.named_parameters()})
    inputs = chosen.examples()
    assert float(pathsgd.gamma_sq(model, *inputs)) == pytest.approx(
        network.gamma_sq_by_paths(p), rel=RELATIVE, abs=0
    )
    for order in (0.5, 1, 3):
        norm = float(pathsgd.path_norm(model, *inputs, order=order))
        assert norm == pytest.approx(network.path_norm(p, order), rel=RELATIVE, abs=0)
    for terms, expected in [
        ("first", network.kappa1(p)),
        ("second", network.kappa2(p)),
        ("both", network.kappa(p)),
    ]:
        found = pathsgd.kappa(model, *inputs, terms=terms)
        for parameter, values in unpack(layout, expected).items():
            np.testing.assert_allclose(
                found[parameter], values, rtol=RELATIVE, atol=0, err_msg=parameter
            )


def test_every_rule_has_a_case() -> None:
    met: set[str] = set()
    for name, chosen in CASES.items():
        met |= {step.operation for step in record(chosen.build(name), chosen.examples()).steps}
    assert set(RULES) - met == set()

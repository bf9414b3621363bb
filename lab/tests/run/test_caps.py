"""Other caps on the recurrent matrix, and the net that keeps it orthogonal."""

from __future__ import annotations

import math

import pytest
import torch
from studies.growth.caps import Cap, capped

from pathsgd_lab.errors import SpecError
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.run.train import _prepare
from pathsgd_lab.studies.study import run

STEPS = 5
LOW = 0.02


def size(weight: torch.Tensor, cap: Cap) -> float:
    """What a cap is on."""
    if cap == "entries":
        return float(weight.abs().amax())
    if cap == "radius":
        return float(torch.linalg.eigvals(weight).abs().amax())
    return float(torch.linalg.matrix_norm(weight, 2))


@pytest.mark.parametrize("cap", ["singular-values", "radius", "entries"])
def test_a_cap_holds_and_leaves_what_is_below_it_alone(cap: Cap) -> None:
    weight = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    most = 0.5 if cap == "entries" else math.exp(0.5 / STEPS)
    assert size(weight, cap) > most
    below = capped(weight, cap, 0.5, STEPS)
    assert size(below, cap) == pytest.approx(most)
    torch.testing.assert_close(capped(0.9 * below, cap, 0.5, STEPS), 0.9 * below)


def test_a_matrix_of_zeros_has_no_radius_to_cap() -> None:
    assert not capped(torch.zeros(3, 3), "radius", 1.0, STEPS).any()


def _spec(system: str, optimiser: str, **settings: object) -> RunSpec:
    sizes = {"length": STEPS, "hidden": 4, "valid_size": 5, "test_size": 5, "steps": 8}
    return run(
        "adding", system, optimiser, **{**sizes, "lr": 0.05, "others_range": 0.3, **settings}
    )


def _trained(spec: RunSpec) -> torch.Tensor:
    trainer = _prepare(spec, None)
    for _ in range(8):
        trainer.stepper.step(trainer.stream.next(), None)
    return trainer.model.rnn.weight_hh_l0.detach()  # type: ignore[union-attr]


@pytest.mark.parametrize("cap", ["singular-values", "radius", "entries"])
def test_training_keeps_to_the_cap(cap: Cap) -> None:
    free = size(_trained(_spec("rnn_path", "adam", gain=1.5)), cap)
    most = size(_trained(_spec("rnn_path", "adam-capped", gain=1.5, cap=cap, cap_limit=LOW)), cap)
    assert most <= (LOW if cap == "entries" else math.exp(LOW / STEPS)) * (1 + 1e-5) < free


def test_an_orthogonal_net_moves_and_stays_orthogonal() -> None:
    weight = _trained(_spec("orthogonal_rnn", "adam"))
    torch.testing.assert_close(weight @ weight.t(), torch.eye(4), atol=1e-5, rtol=0)
    assert not torch.allclose(weight, torch.eye(4), atol=1e-2)


def test_refusals_say_what_to_do() -> None:
    with pytest.raises((SpecError, ValueError), match="choose adam"):
        _spec("rnn_path", "adam-capped", cap_limit=0.0)
    with pytest.raises((SpecError, ValueError), match="rnn_path only"):
        run("adding", "lstm", "adam-capped")

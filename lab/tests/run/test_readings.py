"""The paper's rule in all its readings, against the definition written out in plain torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd_lab.run.optimisers.readings import PaperPathSGD, PlainWeights, Reading, kappas
from pathsgd_lab.run.spec import default_spec, replace_settings
from pathsgd_lab.run.trainer import Trainer

READINGS = [Reading(*flags) for flags in itertools.product((False, True), repeat=4)]


def random_weights(hidden: int, inputs: int, outputs: int, seed: int) -> PlainWeights:
    g = torch.Generator().manual_seed(seed)
    shapes = [
        (hidden, inputs),
        (hidden, hidden),
        (hidden,),
        (hidden,),
        (outputs, hidden),
        (outputs,),
    ]
    return PlainWeights(
        *(0.5 * torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
    )


def gamma_sq(squared: PlainWeights, steps: int, reading: Reading) -> Tensor:
    """The sum over paths, by the squared net on ones, one step after the other."""
    w_in, w_rec, b_in, b_rec, w_out, b_out = squared
    h = torch.ones_like(b_in) if reading.initial_state else torch.zeros_like(b_in)
    total = torch.zeros((), dtype=h.dtype)
    for t in range(steps):
        h = w_rec @ h + w_in.sum(1) + (b_in + b_rec if reading.biases else 0.0)
        if reading.every_output or t == steps - 1:
            total = total + (w_out @ h).sum() + (b_out.sum() if reading.biases else 0.0)
    return total


def half_second_derivative(w: PlainWeights, steps: int, reading: Reading, index: int) -> Tensor:
    """kappa1 + kappa2 by its definition, one entry at a time."""
    p = w[index].clone().requires_grad_()
    squared = PlainWeights(
        *(p.square() if i == index else other.square() for i, other in enumerate(w))
    )
    (first,) = torch.autograd.grad(gamma_sq(squared, steps, reading), p, create_graph=True)
    rows = [
        torch.autograd.grad(f, p, retain_graph=True)[0].reshape(-1)[i]
        for i, f in enumerate(first.reshape(-1))
    ]
    return 0.5 * torch.stack(rows).view(p.shape)


def first_derivative(w: PlainWeights, steps: int, reading: Reading, index: int) -> Tensor:
    """kappa1: the derivative by the squared parameter."""
    squared = PlainWeights(*(p.square().requires_grad_() for p in w))
    return torch.autograd.grad(gamma_sq(squared, steps, reading), squared[index])[0]


@pytest.mark.parametrize("reading", READINGS, ids=str)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 6), st.integers(0, 9)
)
@settings(max_examples=15)
def test_kappa_is_what_the_definition_says(
    reading: Reading, hidden: int, inputs: int, outputs: int, steps: int, seed: int
) -> None:
    w = random_weights(hidden, inputs, outputs, seed)
    oracle = half_second_derivative if reading.both else first_derivative
    for index, found in enumerate(kappas(w, steps, reading)):
        if not reading.biases and w._fields[index].startswith("b_"):
            assert not found.any()
        else:
            expected = oracle(w, steps, reading, index)
            torch.testing.assert_close(
                found.expand(w[index].shape), expected, rtol=1e-9, atol=1e-12
            )


def trainer(steps: int = 8, **changes: Any) -> Trainer:
    small = {
        "length": 6,
        "hidden": 5,
        "batch_size": 4,
        "valid_size": 10,
        "test_size": 10,
        "others_range": 0.5,
    }
    spec = replace_settings(
        default_spec("adding", "rnn_path", "path-sgd-paper"), steps=steps, **small, **changes
    )
    return Trainer(spec, spec.task.prepare(None))


def advance(run: Trainer, steps: int) -> None:
    for _ in range(steps):
        run.stepper.step(run.stream.next(), None)


def oracle_steps(run: Trainer, count: int, *, batch_sum: bool = False) -> list[Tensor]:
    """The rule in float64 by autograd and loops, on the run's batches and start."""
    o = run.spec.optimiser
    reading = Reading(o.initial_state, o.every_output, o.biases, o.both_terms)
    w = PlainWeights(*(p.detach().double() for p in PlainWeights.of(run.model)))
    constant, velocity = None if o.scale == "sgd" else 1.0, [torch.zeros_like(p) for p in w]
    for _ in range(count):
        batch = run.stream.next()
        leaves = PlainWeights(*(p.clone().requires_grad_() for p in w))
        h = torch.zeros(batch.inputs.shape[1], w.b_in.numel(), dtype=torch.float64)
        for x in batch.inputs.double():
            h = torch.relu(x @ leaves.w_in.t() + h @ leaves.w_rec.t() + leaves.b_in + leaves.b_rec)
        error = (h @ leaves.w_out.t() + leaves.b_out - batch.targets).square()
        G = torch.autograd.grad(error.sum() if batch_sum else error.mean(), leaves)
        skip = [not o.biases and name.startswith("b_") for name in w._fields]
        G = tuple(torch.zeros_like(g) if s else g for g, s in zip(G, skip, strict=True))
        by_definition = half_second_derivative if reading.both else first_derivative
        K = [
            None if s else by_definition(w, len(batch.inputs), reading, i)
            for i, s in enumerate(skip)
        ]
        flat = torch.cat([g.reshape(-1) for g in G])
        if o.clip and o.clip_on == "gradient":
            G = tuple(g * min(1.0, o.clip / float(flat.norm())) for g in G)
            flat = torch.cat([g.reshape(-1) for g in G])
        D = [torch.zeros_like(g) if k is None else g / k for g, k in zip(G, K, strict=True)]
        if constant is None:
            constant = float(flat.norm() / torch.cat([d.reshape(-1) for d in D]).norm())
        D = [constant * d for d in D]
        sizes = {
            "direction": math.sqrt(sum(float(d.square().sum()) for d in D)),
            "dual": math.sqrt(sum(float((g * d).sum()) for g, d in zip(G, D, strict=True))),
        }
        if o.clip and o.clip_on in sizes:
            D = [d * min(1.0, o.clip / sizes[o.clip_on]) for d in D]
        velocity = [o.momentum * m + d for m, d in zip(velocity, D, strict=True)]
        w = PlainWeights(*(p - o.lr * m for p, m in zip(w, velocity, strict=True)))
    return list(w)


@pytest.mark.parametrize("scale", ["sgd", "kappa"])
@pytest.mark.parametrize(
    ("clip_on", "clip"), [("direction", 0.3), ("gradient", 0.3), ("dual", 0.3), ("direction", 0.0)]
)
@pytest.mark.parametrize("reading", [READINGS[2], READINGS[8], READINGS[12], READINGS[15]], ids=str)
def test_steps_are_the_oracles(scale: str, clip_on: str, clip: float, reading: Reading) -> None:
    flags = {
        "initial_state": reading.initial_state,
        "every_output": reading.every_output,
        "biases": reading.biases,
    }
    lr = {"sgd": 0.05, "kappa": 0.002}[scale]
    settings = {
        "scale": scale,
        "clip_on": clip_on,
        "clip": clip,
        "both_terms": reading.both,
        "lr": lr,
        **flags,
    }
    run = trainer(**settings, momentum=0.5)
    expected = oracle_steps(trainer(**settings, momentum=0.5), 4)
    advance(run, 4)
    for found, other in zip(PlainWeights.of(run.model), expected, strict=True):
        torch.testing.assert_close(found.double(), other, rtol=1e-4, atol=1e-5)


def test_the_first_direction_is_as_long_as_the_gradient() -> None:
    run = trainer(lr=1e-3, clip=0.0)
    before = [p.detach().clone() for p in PlainWeights.of(run.model)]
    advance(run, 1)
    moved = torch.cat(
        [
            (b - p).detach().reshape(-1)
            for b, p in zip(before, PlainWeights.of(run.model), strict=True)
        ]
    )
    gradient = torch.cat([p.grad.reshape(-1) for p in PlainWeights.of(run.model)])
    assert float(moved.norm()) == pytest.approx(1e-3 * float(gradient.norm()), rel=1e-3)


@pytest.mark.parametrize("clip_on", ["direction", "gradient"])
def test_a_summed_loss_is_another_rate_and_another_bound(clip_on: str) -> None:
    """A sum over B sequences with (lr, clip) is the mean with (B lr, clip / B)."""
    summed = oracle_steps(trainer(lr=0.01, clip=0.4, clip_on=clip_on), 3, batch_sum=True)
    mean = oracle_steps(trainer(lr=0.04, clip=0.1, clip_on=clip_on), 3)
    for a, b in zip(summed, mean, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_a_run_goes_on_bit_for_bit(refresh_every: int) -> None:
    settings = {"lr": 0.05, "momentum": 0.9, "refresh_every": refresh_every, "initial_state": True}
    whole, half, other = (trainer(**settings) for _ in range(3))
    advance(whole, 7)
    advance(half, 4)
    other.load_state_dict(half.state_dict())
    advance(other, 3)
    for a, b in zip(PlainWeights.of(whole.model), PlainWeights.of(other.model), strict=True):
        assert torch.equal(a, b)


def test_other_nets_are_refused() -> None:
    optimiser, spec = (
        default_spec("adding", "rnn_path", "path-sgd-paper").optimiser,
        default_spec("adding", "lstm"),
    )
    lstm = spec.system.build(spec.task, 0)
    with pytest.raises(ValueError, match="one-layer ReLU nets"):
        optimiser.stepper(spec.system, lstm, spec.task)
    symbols = default_spec("ptb_char", "rnn_path", "sgd")
    net = symbols.system.build(symbols.task, 0)
    with pytest.raises(ValueError, match="symbols"):
        PaperPathSGD(net, 0.1, Reading(), "sgd", 1.0, "direction")  # type: ignore[arg-type]


def test_an_entry_on_no_path_is_not_moved() -> None:
    run = trainer(lr=0.1)
    with torch.no_grad():
        run.model.readout.weight[0, 2] = 0.0
        run.model.rnn.weight_hh_l0[:, 2] = 0.0  # no path leaves unit 2: its inputs have kappa 0
    advance(run, 2)
    assert all(bool(torch.isfinite(p).all()) for p in run.model.parameters())


def test_a_run_whose_weights_overflow_goes_on_until_its_loss_says_so() -> None:
    run = trainer(lr=1e30, clip=0.0, scale="kappa")
    losses = [float(run.stepper.step(run.stream.next(), None)[0]) for _ in range(4)]
    assert math.isfinite(losses[0]) and not math.isfinite(losses[-1])


def test_the_library_has_the_reading_that_follows_the_model() -> None:
    ours = trainer(lr=0.05, clip=0.3, steps=6)
    library = replace_settings(
        default_spec("adding", "rnn_path", "path-sgd"),
        **{
            "length": 6,
            "hidden": 5,
            "batch_size": 4,
            "valid_size": 10,
            "test_size": 10,
            "others_range": 0.5,
        },
        **{
            "steps": 6,
            "lr": 0.05,
            "clip": 0.3,
            "unit": "sgd",
            "rho": 0.0,
            "growth_limit": 0.0,
            "refresh_every": 1,
        },
    )
    theirs = Trainer(library, library.task.prepare(None))
    advance(ours, 6)
    advance(theirs, 6)
    for a, b in zip(PlainWeights.of(ours.model), PlainWeights.of(theirs.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)

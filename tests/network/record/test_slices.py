"""Separate slices without path counts, against the count; calls checked once or each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record import batch, calls, recorder
from pathsgd.network.record.batch import are_certainly_separate
from pathsgd.network.record.inputs import Call, call_of, numbered_tensors
from pathsgd.network.record.record import record, record_as_is
from pathsgd.network.tape import Recording, alike
from support import models
from support.cases import CASES


def pairs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Iterator[tuple[Recording, Recording]]:
    """The model with one slice and with two, along every dimension that may be the batch."""
    call: Call = call_of(model, inputs)
    for dims in batch._candidates(numbered_tensors(call)):
        try:
            one, two = (record_as_is(model, batch._resized(call, dims, size)) for size in (1, 2))
        except (ValueError, UnsupportedOperation):
            continue
        yield one, two


@pytest.mark.parametrize("name", CASES)
def test_certainty_agrees_with_the_path_count(name: str) -> None:
    chosen = CASES[name]
    for one, two in pairs(chosen.build(name), chosen.examples()):
        if are_certainly_separate(one, two):
            counts = [batch._log_paths(recording) for recording in (one, two)]
            assert counts[1] - counts[0] == pytest.approx(torch.tensor(2.0).log().item())
            assert [v.shape.numel() for v in two.outputs] == [
                2 * v.shape.numel() for v in one.outputs
            ]


CERTAIN = {
    "mlp": (lambda: models.mlp([3, 2, 2]), (4, 3)),
    "rnn": (lambda: models.ReadRNN(2, 2, 2), (4, 3, 2)),
    "deep, batch first": (
        lambda: models.ReadRNN(2, 2, 2, num_layers=2, batch_first=True),
        (3, 4, 2),
    ),
    "loop": (lambda: models.HandLoop(2, 2, 1), (4, 3, 2)),
    "cells": (lambda: models.CellLoop(2, 2, 1), (3, 4, 2)),
    "tied": (lambda: models.TiedAutoencoder(2, 3), (3, 2)),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_usual_nets_need_no_path_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = CERTAIN[name]
    monkeypatch.setattr(batch, "_log_paths", lambda recording: pytest.fail("paths were counted"))
    assert record(make(), (torch.rand(shape),)).rows == 1


MIXED = {
    "the mean of the slices": lambda m, x: torch.relu(m.layer(x) - m.layer(x).mean(0)),
    "the slice before": lambda m, x: torch.relu(m.layer(x) + m.layer(x).roll(1, 0)),
    "all slices in a row": lambda m, x: torch.relu(m.layer(x)).reshape(-1, 1) @ m.other,
    "a sum over slices": lambda m, x: torch.relu(m.layer(x)).sum(0),
    "a factor of each slice": lambda m, x: torch.relu(
        m.layer(x) + torch.arange(1.0, len(x) + 1)[:, None]
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_or_distinguished_slices_are_not_certainly_separate(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = nn.Linear(3, 2), nn.Parameter(torch.rand(1, 2))

        def forward(self, x: Tensor) -> Tensor:
            return MIXED[name](self, x)

    one, two = (
        record_as_is(model := Net(), call_of(model, (torch.rand(size, 3),))) for size in (1, 2)
    )
    assert not are_certainly_separate(one, two)


@pytest.mark.parametrize("name", CASES)
def test_a_call_checked_once_is_recorded_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = CASES[name]
    model, inputs = chosen.build(name), chosen.examples()
    found = record(model, inputs)
    monkeypatch.setattr(calls, "key_of", lambda *_: None)
    assert alike(found, record(model, inputs))


def test_the_turns_of_a_loop_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    slowly = recorder.Recorder._record
    monkeypatch.setattr(
        recorder.Recorder, "_record", lambda self, *a: asked.append(a[1]) or slowly(self, *a)
    )
    counts = []
    for steps in (5, 50):
        asked.clear()
        recorded = record(models.CellLoop(2, 2, 1), (torch.rand(3, steps, 2),))
        counts.append(asked.count("rnn_relu_cell"))
        assert sum(step.operation == "rnn_relu_cell" for step in recorded.steps) == steps
    assert counts[0] == counts[1]

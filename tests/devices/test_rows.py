"""Rows before batch normalisation: all at once on a device, one parameter at a time on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from pathsgd import PathAdam
from pathsgd.optim.scale_free import ScaleFreeRows
from pathsgd.torch_private import segment_sums
from support.device import DEVICE, counting, to_cpu

SHAPE = (6, 1, 4, 4)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 1e-2}
NORMALISED = ("0", "3", "7")
"""The layers in front of a batch normalisation."""


def layers(dtype: torch.dtype) -> nn.Module:
    """Rows as first or second dimension, biases that enter them, a layer that is not scale-free."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2),
    ).to(dtype)  # fmt: skip


def rows_of(model: nn.Module, x: Tensor, groups: bool) -> ScaleFreeRows:
    """The rows after one step."""
    params = [{"params": [p]} for p in model.parameters()] if groups else None
    optimizer = PathAdam(model, params=params)
    model(x).square().mean().backward()
    optimizer.step()
    return optimizer._refresh.scale_free_rows(optimizer.parts_with_gradients(), optimizer._last)


def moved_by_chance(model: nn.Module) -> list[Tensor]:
    """Other values for all parameters; one row becomes zero."""
    torch.manual_seed(4)
    changed = [p.detach() + torch.randn(p.shape).to(p.dtype) for p in model.parameters()]
    changed[0][2], changed[1][2] = 0.0, 0.0
    return changed


def put(model: nn.Module, values: Iterable[Tensor]) -> None:
    for p, value in zip(model.parameters(), values):
        p.copy_(value.detach().to(p.device))


@torch.no_grad()
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_get_their_lengths_back_as_on_the_cpu(dtype: torch.dtype, groups: bool) -> None:
    here, x = layers(dtype), torch.randn(SHAPE).to(dtype)
    there = copy.deepcopy(here).to(DEVICE)
    with torch.enable_grad():
        rows, rows_there = rows_of(here, x, groups), rows_of(there, x.to(DEVICE), groups)
    here[0].weight[1], here[0].bias[1] = 0.0, 0.0  # a row that is zero before
    put(there, here.parameters())
    changed = moved_by_chance(here)
    for model, those in ((here, rows), (there, rows_there)):
        with counting() as counts:
            those.remember()
            put(model, changed)
            those.keep_lengths()
    assert counts.syncs == len(changed)  # those of the test, which copies new values there
    for (name, p), q, now in zip(here.named_parameters(), there.parameters(), changed):
        torch.testing.assert_close(to_cpu(q), p, rtol=TOLERANCES[dtype], atol=1e-7)
        assert torch.equal(p, now) == (name.split(".")[0] not in NORMALISED), name
    assert torch.equal(
        to_cpu(there[0].weight)[1], changed[0][1]
    )  # nobody knows how long it should be


def test_entries_without_a_metric_have_no_length() -> None:
    here, x = layers(torch.float64), torch.randn(SHAPE).double()
    there = copy.deepcopy(here).to(DEVICE)
    for model, inputs in ((here, x), (there, x.to(DEVICE))):
        rows = rows_of(model, inputs, False)
        row = rows._rows[0]
        state = row.part.states[row.index]
        state.whitening = state.dense_whitening().expand(row.p.shape).clone()
        state.whitening[0, 0, 0] = 0.0
        with torch.no_grad():
            rows.remember()
            model[0].weight.mul_(torch.arange(1.0, 10.0).view(3, 3).to(inputs))
            rows.keep_lengths()
    torch.testing.assert_close(
        to_cpu(there[0].weight.detach()), here[0].weight.detach(), rtol=1e-6, atol=0
    )


def test_sums_of_runs_without_the_operation_that_keeps_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, bounds = torch.rand(10, dtype=torch.float64), torch.tensor([0, 3, 3, 4, 10])
    wanted = torch.stack([values[:3].sum(), values[:0].sum(), values[3], values[4:].sum()])
    torch.testing.assert_close(segment_sums(values, bounds), wanted)
    monkeypatch.delattr(torch, "segment_reduce")
    torch.testing.assert_close(segment_sums(values, bounds), wanted)

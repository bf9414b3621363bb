"""Every learning-rate scheduler of torch drives the path optimisers as it drives SGD and Adam."""

import copy

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP

STEPS = 8

SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, power=2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=STEPS + 1),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 5)],
        milestones=[3],
    ),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=1e-3, anneal_epochs=4),
}
PAIRS = {
    "PathSOAP": (
        lambda m: PathSOAP(m, 0.01),
        lambda m: torch.optim.Adam(m.parameters(), 0.01, betas=(0.95, 0.95)),
    ),
    "PathMuon": (
        lambda m: PathMuon(m, 0.01),
        lambda m: torch.optim.Adam(
            [{"params": m.parameters(), "momentum": 0.95}], 0.01, betas=(0.9, 0.99)
        ),
    ),
    "PathSGD": (
        lambda m: PathSGD(m, 0.01, momentum=0.9),
        lambda m: torch.optim.SGD(m.parameters(), 0.01, 0.9),
    ),
    "PathAdam": (
        lambda m: PathAdam(m, 0.01),
        lambda m: torch.optim.Adam(m.parameters(), 0.01, betas=(0.9, 0.99)),
    ),
}


def test_the_table_has_every_scheduler():
    assert set(SCHEDULERS) == {*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"}


def schedule(case, make, scheduler, model):
    """The settings a scheduler changes, step by step."""
    optimizer = make(model)
    driver, seen = scheduler(optimizer), []
    for _ in range(STEPS):
        case.train(optimizer, 1, model)
        driver.step(*([1.0] if isinstance(driver, lr_scheduler.ReduceLROnPlateau) else []))
        group = optimizer.param_groups[0]
        seen.append((float(group["lr"]), group.get("momentum"), group.get("betas")))
    return seen


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
def test_settings_are_those_torchs_optimiser_gets(mlp, values, name, ours, theirs):
    before = values(mlp.model)
    found = schedule(mlp, ours, SCHEDULERS[name], mlp.model)
    assert found == schedule(mlp, theirs, SCHEDULERS[name], mlp.copy())
    assert len({lr for lr, _, _ in found}) > 1
    assert torch.isfinite(values(mlp.model)).all() and not torch.equal(values(mlp.model), before)


@pytest.mark.parametrize("make", [pair[0] for pair in PAIRS.values()], ids=PAIRS)
def test_the_step_has_the_size_the_scheduler_says(mlp, values, make):
    """A step at a tenth of the rate is a tenth of the step: the scheduled lr is used."""
    moves = []
    for factor in (1.0, 0.1):
        model = copy.deepcopy(mlp.model)
        optimizer = make(model)
        lr_scheduler.LambdaLR(optimizer, lambda epoch, factor=factor: factor)
        before = values(model)
        mlp.train(optimizer, 1, model)
        moves.append(values(model) - before)
    torch.testing.assert_close(moves[1], 0.1 * moves[0], rtol=1e-6, atol=1e-12)

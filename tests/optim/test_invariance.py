"""A model and its rescaled twin stay one function in training; not so under other optimisers."""

import pytest
import torch

import pathsgd
from pathsgd import Metric, PathAdam, PathSGD

STEPS = 30

INVARIANT = {
    "PathSGD": lambda m: PathSGD(m, 0.05),
    "PathSGD momentum": lambda m: PathSGD(m, 0.02, momentum=0.9),
    "PathSGD nesterov": lambda m: PathSGD(m, 0.02, momentum=0.9, nesterov=True),
    "PathSGD weight decay": lambda m: PathSGD(m, 0.05, momentum=0.5, weight_decay=0.1),
    "PathSGD no clip": lambda m: PathSGD(m, 0.05, clip=None),
    "PathSGD tight clip": lambda m: PathSGD(m, 0.05, clip=0.1),
    "PathSGD rho 0": lambda m: PathSGD(m, 0.02, metric=Metric(rho=0.0)),
    "PathSGD rho 0.5": lambda m: PathSGD(m, 0.02, metric=Metric(rho=0.5)),
    "PathSGD the paper's rule": lambda m: PathSGD(m, 0.005, metric="paper"),
    "PathSGD both terms": lambda m: PathSGD(m, 0.05, momentum=0.9, terms="both"),
    "PathSGD bounded growth": lambda m: PathSGD(m, 0.05, momentum=0.9, growth=0.05),
    "PathSGD seldom measured": lambda m: PathSGD(m, 0.05, momentum=0.9, refresh_every=7),
    "PathAdam": lambda m: PathAdam(m, 0.01),
    "PathAdam weight decay": lambda m: PathAdam(m, 0.01, weight_decay=0.1),
    "PathAdam rho 0": lambda m: PathAdam(m, 0.01, metric=Metric(rho=0.0)),
    "PathAdam rho 1": lambda m: PathAdam(m, 0.01, clip=None),
    "PathAdam both terms": lambda m: PathAdam(m, 0.01, terms="both"),
    "PathAdam bounded growth": lambda m: PathAdam(m, 0.01, growth=0.05),
    "PathAdam absolute": lambda m: PathAdam(m, 0.01, metric="absolute"),
    "PathAdam absolute rho 0 bounded": lambda m: PathAdam(
        m, 0.01, metric=Metric(rho=0.0, absolute=True), growth=0.05
    ),
    "PathAdam seldom measured": lambda m: PathAdam(m, 0.01, refresh_every=7),
}
CONTROLS = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), 0.05),
    "SGD momentum": lambda m: torch.optim.SGD(m.parameters(), 0.02, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), 0.01),
    "PathAdam of the paper": lambda m: PathAdam(m, 0.01, metric="paper"),
}


def drift(case, make):
    """Distance of the twins' outputs after training, and how far they moved; both relative."""
    start = case.model(case.x).detach()
    twin = case.copy()
    pathsgd.random_rescaling(
        twin, case.x, low=1e-2, high=1e2, generator=torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(twin(case.x), case.model(case.x), rtol=1e-9, atol=1e-12)
    ends = []
    for model in (case.model, twin):
        case.train(make(model), STEPS, model)
        ends.append(model(case.x).detach())
    size = ends[0].norm()
    return float((ends[0] - ends[1]).norm() / size), float((ends[0] - start).norm() / size)


@pytest.mark.parametrize("make", INVARIANT.values(), ids=INVARIANT)
def test_twins_stay_together(case, make):
    apart, travelled = drift(case, make)
    assert apart < 1e-6
    assert travelled > 0.02, "they must move, or staying together says nothing"


@pytest.mark.parametrize("make", CONTROLS.values(), ids=CONTROLS)
def test_twins_part_under_optimisers_that_are_not_invariant(case, make):
    apart, _ = drift(case, make)
    assert not apart < 1e-2  # a diverged twin (NaN) has parted too


def test_the_dual_norm_is_invariant(case):
    twin = case.copy()
    pathsgd.random_rescaling(
        twin, case.x, low=1e-2, high=1e2, generator=torch.Generator().manual_seed(2)
    )
    norms = []
    for model in (case.model, twin):
        optimizer = PathSGD(model, 0.0, clip=1.0)
        case.train(optimizer, 1, model)
        norms.append(optimizer.dual_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-9)
    assert norms[0] > 0

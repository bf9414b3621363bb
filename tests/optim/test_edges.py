"""No path, no gradient or no finite number: no step, no NaN, and learning can still begin."""

import copy
import math

import pytest
import torch
from torch import nn

from pathsgd import Metric, PathAdam, PathSGD

EVERY = {
    "PathSGD": lambda m, **k: PathSGD(m, **{"lr": 0.1, **k}),
    "PathSGD rho 0": lambda m, **k: PathSGD(m, **{"lr": 0.1, "metric": Metric(rho=0.0), **k}),
    "PathSGD momentum": lambda m, **k: PathSGD(
        m, **{"lr": 0.1, "momentum": 0.9, "metric": Metric(rho=0.5), **k}
    ),
    "PathSGD of the paper": lambda m, **k: PathSGD(m, **{"lr": 0.01, "metric": "paper", **k}),
    "PathAdam": lambda m, **k: PathAdam(m, **{"lr": 0.03, **k}),
    "PathAdam rho 0": lambda m, **k: PathAdam(m, **{"lr": 0.03, "metric": Metric(rho=0.0), **k}),
    "PathAdam of the paper": lambda m, **k: PathAdam(m, **{"lr": 0.03, "metric": "paper", **k}),
}
INVARIANT = {name: make for name, make in EVERY.items() if name != "PathAdam of the paper"}


@pytest.fixture(params=list(EVERY))
def make(request):
    return EVERY[request.param]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def all_finite(model):
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_rows_of_a_table_that_no_batch_reads_stay(make):
    """A table has paths through every row, but a row that was not read has no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.ReLU(), nn.Linear(8, 1))
    before, optimizer = model[0].weight.detach().clone(), make(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[0, 1], [2, 3]])).square().sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight[4:], before[4:])
    assert not torch.equal(model[0].weight[:4], before[:4])
    assert all_finite(model)


def test_a_unit_that_nothing_enters_and_one_that_nothing_leaves(mlp, make, dtype):
    model, x, y = mlp.model.to(dtype), mlp.x.to(dtype), mlp.y.to(dtype)
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0.0, 0.0  # kappa of what leaves it is zero
        model[2].weight[:, 1] = 0.0  # kappa of what enters it is zero
    optimizer = make(model)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert all_finite(model)


@pytest.mark.parametrize(
    "bias", [0.0, 0.5], ids=["no path at all", "a path through the output bias"]
)
def test_an_output_layer_of_zeros_begins_to_learn(rnn, make, bias):
    """gamma^2 is zero, or all flow bypasses the units: the output layer moves first, then the rest.

    Under the paper's rule everything moves, but too far: behind an output weight w the step grows
    as 1/w.
    """
    model, x, y = rnn.model.float(), rnn.x.float(), rnn.y.float()
    nn.init.zeros_(model.out.weight)
    nn.init.constant_(model.out.bias, bias)
    optimizer, hidden = make(model), model.rnn.weight_hh_l0.detach().clone()
    first = (model(x) - y).square().mean().item()
    for step in range(40):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        assert all_finite(model)
        if step == 0:
            assert model.out.weight.any()
    assert not torch.equal(model.rnn.weight_hh_l0, hidden)
    if isinstance(optimizer.plan.metric, Metric):
        assert (model(x) - y).square().mean().item() < 0.99 * first


def test_a_model_of_zeros_stays_finite(mlp, make):
    for p in mlp.model.parameters():
        nn.init.zeros_(p)
    mlp.train(make(mlp.model), 3)
    assert all_finite(mlp.model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("optimiser", [PathSGD, PathAdam])
def test_a_gradient_that_is_not_finite_moves_nothing(mlp, values, optimiser, value):
    """As clipped steps do; without a clip it goes through, as in torch."""
    optimizer = optimiser(
        mlp.model, weight_decay=0.1, **({"momentum": 0.9} if optimiser is PathSGD else {})
    )
    mlp.train(optimizer, 2)
    twin = mlp.copy()
    again = optimiser(twin)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = values(mlp.model)
    mlp.model[0].weight.grad[0, 0] = value
    optimizer.step()
    assert torch.equal(values(mlp.model), before)
    mlp.train(optimizer, 2)
    mlp.train(again, 2, twin)
    assert torch.equal(values(mlp.model), values(twin)), "the moments must not have seen it either"


def test_gradients_too_large_for_a_square_are_clipped(mlp):
    """Their squares leave float32; the norm does not."""
    model = mlp.model.float()
    optimizer = PathSGD(model, 0.1)
    model(mlp.x.float()).sum().backward()
    for p in model.parameters():
        p.grad.mul_(1e25)
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert 1e24 < optimizer.dual_norm < 1e30
    assert not torch.equal(model[0].weight, before)
    assert all_finite(model)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("make", INVARIANT.values(), ids=INVARIANT)
def test_models_far_from_one_stay_in_range(mlp, make, scale):
    """kappa of an absurdly scaled layer leaves float32; the whitened gradient does not."""
    model = mlp.model.float()
    with torch.no_grad():
        model[0].weight.mul_(scale), model[0].bias.mul_(scale), model[2].weight.div_(scale)
    optimizer = make(model)
    model(mlp.x.float()).square().mean().backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert all_finite(model)
    assert not torch.equal(model[0].weight, before)


# ---- what is refused -----------------------------------------------------------------------------


def test_sparse_gradients_are_refused_by_name(make):
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    optimizer = make(model)
    model(torch.tensor([[0, 1]])).sum().backward()
    with pytest.raises(RuntimeError, match=r"'0\.weight' is sparse"):
        optimizer.step()


def test_complex_parameters_are_refused_by_name(make):
    model = nn.Linear(2, 1)
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="'phase' is complex"):
        make(model)


def test_foreign_parameters_are_refused(mlp, make):
    optimizer = make(mlp.model)
    with pytest.raises(ValueError, match="does not belong to the model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]})
    assert len(optimizer.param_groups) == 1
    mlp.train(optimizer, 1)


BAD = [
    (PathSGD, {"lr": -0.1}, "lr"),
    (PathSGD, {"momentum": 1.0}, "momentum"),
    (PathSGD, {"nesterov": True}, "nesterov"),
    (PathSGD, {"lr": math.inf}, "lr"),
    (PathSGD, {"metric": "other"}, "metric"),
    (PathSGD, {"clip": math.inf}, "clip"),
    (PathSGD, {"clip": "none"}, "clip"),
    (PathSGD, {"clip": 0.0}, "clip"),
    (PathSGD, {"growth": 0.0}, "growth"),
    (PathSGD, {"refresh_every": 0}, "refresh_every"),
    (PathSGD, {"terms": "second"}, "terms"),
    (PathAdam, {"weight_decay": -1.0}, "weight_decay"),
    (PathAdam, {"betas": (0.9, 1.0)}, "betas"),
    (PathAdam, {"eps": -1.0}, "eps"),
    (PathAdam, {"weight_decay": math.inf}, "weight_decay"),
    (PathAdam, {"metric": None}, "metric"),
    (PathAdam, {"lr": math.nan}, "lr"),
]
OF_A_GROUP = [row for row in BAD if row[1].keys() <= {"lr", "momentum", "nesterov", "betas", "eps"}]


@pytest.mark.parametrize(("optimiser", "options", "named"), BAD, ids=str)
def test_bad_settings_are_named(mlp, optimiser, options, named):
    with pytest.raises(ValueError, match=named):
        optimiser(mlp.model, **options)


@pytest.mark.parametrize(("optimiser", "options", "named"), OF_A_GROUP, ids=str)
def test_bad_settings_of_a_group_are_named(mlp, optimiser, options, named):
    with pytest.raises(ValueError, match=named):
        optimiser(mlp.model, params=[{"params": mlp.model.parameters(), **options}])

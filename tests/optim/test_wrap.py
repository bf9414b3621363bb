"""Path-normalised gradients before the steps of torch's own optimisers."""

import gc

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd import Metric, PathSGD, kappa
from pathsgd.optim import wrap

OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


@pytest.fixture(params=list(OPTIMISERS))
def make(request):
    return OPTIMISERS[request.param]


@pytest.mark.parametrize(
    "options",
    [{}, {"metric": Metric(0.5)}, {"metric": "relative", "clip": 0.1}, {"terms": "both"}],
    ids=str,
)
def test_each_step_sees_what_path_normalize_grad_makes(rnn, values, make, options):
    twin = rnn.copy()
    optimizer, plain = make(rnn.model.parameters()), make(twin.parameters())
    handle = wrap(optimizer, rnn.model, **options)
    for _ in range(3):
        rnn.train(optimizer, 1)
        plain.zero_grad()
        rnn.loss(twin).backward()
        norm = pathsgd.path_normalize_grad_(twin, rnn.x, **options)
        plain.step()
        assert handle.dual_norm == pytest.approx(norm.item(), rel=1e-12)
        torch.testing.assert_close(values(rnn.model), values(twin), rtol=1e-12, atol=0)


def test_wrapped_sgd_is_path_sgd(case, values):
    twin = case.copy()
    optimizer = torch.optim.SGD(case.model.parameters(), 0.005)
    wrap(optimizer, case.model)
    case.train(optimizer, 20)
    case.train(PathSGD(twin, 0.005, metric="paper"), 20, twin)
    torch.testing.assert_close(values(case.model), values(twin), rtol=1e-9, atol=1e-12)


def test_gradients_stay_normalised_after_the_step(mlp):
    optimizer = torch.optim.SGD(mlp.model.parameters(), 0.0)
    wrap(optimizer, mlp.model)
    mlp.loss().backward()
    before = {name: p.grad.clone() for name, p in mlp.model.named_parameters()}
    optimizer.step()
    for name, value in kappa(mlp.model, mlp.x).items():
        torch.testing.assert_close(
            mlp.model.get_parameter(name).grad, before[name] / value, rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("keyword", [False, True])
def test_closures_are_normalised_after_they_ran(mlp, values, make, keyword):
    twin = mlp.copy()
    optimizer, other = make(mlp.model.parameters()), make(twin.parameters())
    wrap(optimizer, mlp.model)
    wrap(other, twin)

    def closure():
        optimizer.zero_grad()
        loss = mlp.loss()
        loss.backward()
        return loss

    first = mlp.loss().item()
    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    mlp.train(other, 1, twin)
    assert loss.item() == first
    assert torch.equal(values(mlp.model), values(twin))


def test_only_the_parameters_of_the_optimiser_are_touched(mlp):
    optimizer = torch.optim.SGD(mlp.model[0].parameters(), 0.0)
    wrap(optimizer, mlp.model)
    mlp.loss().backward()
    before = {name: p.grad.clone() for name, p in mlp.model.named_parameters()}
    optimizer.step()
    changed = {
        name for name, p in mlp.model.named_parameters() if not torch.equal(p.grad, before[name])
    }
    assert changed == {"0.weight", "0.bias"}


def test_removed_it_leaves_the_optimiser_and_the_model_as_they_were(mlp, values, make):
    twin = mlp.copy()
    optimizer, plain = make(mlp.model.parameters()), make(twin.parameters())
    wrap(optimizer, mlp.model).remove()
    mlp.train(optimizer, 2)
    mlp.train(plain, 2, twin)
    assert torch.equal(values(mlp.model), values(twin))
    assert not mlp.model._forward_pre_hooks


def test_the_hook_goes_with_the_optimiser(mlp, make):
    optimizer = make(mlp.model.parameters())
    wrap(optimizer, mlp.model)
    mlp.train(optimizer, 1)
    assert len(mlp.model._forward_pre_hooks) == 1
    del optimizer
    gc.collect()
    mlp.loss()
    assert not mlp.model._forward_pre_hooks


def test_example_inputs_and_missing_ones(mlp, make):
    for p in mlp.model.parameters():
        p.grad = torch.ones_like(p)
    optimizer = make(mlp.model.parameters())
    handle = wrap(optimizer, mlp.model)
    with pytest.raises(RuntimeError, match="example_inputs="):
        optimizer.step()
    handle.remove()
    wrap(optimizer, mlp.model, mlp.x)
    optimizer.step()


def test_a_step_without_gradients_does_nothing(mlp, values, make):
    optimizer, before = make(mlp.model.parameters()), values(mlp.model)
    wrap(optimizer, mlp.model)
    optimizer.step()
    assert torch.equal(values(mlp.model), before)


def test_arguments_in_the_wrong_places_are_named(mlp):
    optimizer = torch.optim.SGD(mlp.model.parameters(), 0.1)
    with pytest.raises(TypeError, match="a torch optimiser, not Sequential"):
        wrap(mlp.model, optimizer)
    with pytest.raises(TypeError, match="not generator"):
        wrap(optimizer, mlp.model.parameters())


def test_the_model_is_recorded_once_per_shape(mlp, monkeypatch):
    made, record = [], pathsgd.metric.structures.record
    monkeypatch.setattr(
        pathsgd.metric.structures, "record", lambda *a: made.append(None) or record(*a)
    )
    optimizer = torch.optim.SGD(mlp.model.parameters(), 0.01)
    wrap(optimizer, mlp.model)
    mlp.train(optimizer, 4)
    assert len(made) == 1


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrap(optimizer, model)
    model(torch.tensor([[0, 1]])).sum().backward()
    with pytest.raises(RuntimeError, match=r"'0\.weight' is sparse"):
        optimizer.step()


def test_lbfgs_is_refused_by_name():
    """Its curvature and line search need gradients of the loss itself: normalised ones give NaN."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(TypeError, match="LBFGS measures curvature"):
        pathsgd.optim.wrap(torch.optim.LBFGS(model.parameters()), model)

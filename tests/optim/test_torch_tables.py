"""torch.testing's tables of optimiser settings, schedulers and errors on the path optimisers.

The tables belong to torch.optim.SGD and Adam. Every setting that the path optimisers share passes
the checks that torch runs on its optimisers; every other one must be refused.
"""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

from pathsgd import PathAdam, PathSGD

TABLES = {info.optim_cls: info for info in optim_db}
PAIRS = [(PathSGD, TABLES[torch.optim.SGD]), (PathAdam, TABLES[torch.optim.Adam])]
# Adam's amsgrad, SGD's dampening, and how torch runs its loops.
NOT_OURS = {"amsgrad", "dampening", "foreach", "fused", "capturable", "decoupled_weight_decay"}


def settings(shared):
    for ours, info in PAIRS:
        for row in info.optim_inputs_func(device="cpu"):
            if (not NOT_OURS & row.kwargs.keys()) == shared:
                yield pytest.param(ours, row.kwargs, id=f"{ours.__name__}-{row.desc}")


@pytest.mark.parametrize(("ours", "options"), list(settings(shared=True)))
def test_the_loss_goes_the_right_way(rnn, ours, options):
    before = rnn.loss().item()
    rnn.train(ours(rnn.model, **options), 20)
    assert (rnn.loss().item() > before) == options.get("maximize", False)


@pytest.mark.parametrize(("ours", "options"), list(settings(shared=True)))
def test_a_loaded_state_gives_the_same_steps(rnn, values, ours, options):
    optimizer = ours(rnn.model, **options)
    rnn.train(optimizer, 3)
    model, fresh = rnn.copy(), []
    for again in (ours(model, **options), ours(model)):  # settings come from the state as well
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        twin = copy.deepcopy((model, again))
        rnn.train(twin[1], 3, twin[0])
        fresh.append(values(twin[0]))
    rnn.train(optimizer, 3)
    assert torch.equal(fresh[0], values(rnn.model)) and torch.equal(fresh[1], values(rnn.model))


@pytest.mark.parametrize(("ours", "options"), list(settings(shared=True)))
def test_the_form_of_zeroed_gradients_does_not_matter(mlp, values, ours, options):
    ends = []
    for set_to_none in (True, False):
        model = mlp.copy()
        optimizer = ours(model, **options)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            mlp.loss(model).backward()
            optimizer.step()
        ends.append(values(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize(("ours", "options"), list(settings(shared=False)))
def test_settings_of_other_optimisers_are_refused(mlp, ours, options):
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours(mlp.model, **options)


def schedules():
    for ours, info in PAIRS:
        for index, schedulers in enumerate(info.scheduler_inputs):
            yield pytest.param(ours, schedulers, id=f"{ours.__name__}-{index}")


@pytest.mark.parametrize(("ours", "schedulers"), list(schedules()))
def test_torchs_combinations_of_schedulers(mlp, ours, schedulers):
    optimizer, before = ours(mlp.model, 0.01), mlp.loss().item()
    drivers = [make(optimizer) for make in schedulers]
    for _ in range(20):
        mlp.train(optimizer, 1)
        for driver in drivers:
            driver.step(*([mlp.loss().item()] if isinstance(driver, ReduceLROnPlateau) else []))
    assert mlp.loss().item() < before


def errors():
    for ours, info in PAIRS:
        known = inspect.signature(ours).parameters
        for row in info.optim_error_inputs_func(device="cpu", dtype=torch.float64):
            given = row.optimizer_error_input
            if given.kwargs.keys() <= known.keys() and not _tensor_betas(given.kwargs):
                yield pytest.param(ours, row, id=f"{ours.__name__}-{given.desc}")


def _tensor_betas(options):
    """Betas are read as numbers at once here, so tensors, also beside numbers, are no error."""
    return any(isinstance(beta, torch.Tensor) for beta in options.get("betas", ()))


def _model_of(params):
    """A model with whatever tensors an erroneous `params` names; any model for other errors."""
    if params is None:
        return nn.Linear(2, 1)
    found = [params] if isinstance(params, torch.Tensor) else []
    for entry in [] if found else params:
        inner = entry["params"] if isinstance(entry, dict) else [entry]
        for p in [inner] if isinstance(inner, torch.Tensor) else inner:
            found.append(p[1] if isinstance(p, tuple) else p)
    return nn.ParameterList([p if isinstance(p, nn.Parameter) else nn.Parameter(p) for p in found])


@pytest.mark.parametrize(("ours", "row"), list(errors()))
def test_torchs_errors_are_errors_here(ours, row):
    assert row.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    given = row.optimizer_error_input
    model = _model_of(given.params)
    refused = pytest.warns if issubclass(row.error_type, Warning) else pytest.raises
    with refused(row.error_type):
        ours(model, params=given.params, **given.kwargs)

"""Saved, loaded, copied and pickled optimisers go on exactly as if nothing had happened."""

import copy
import io
import pickle
from collections import defaultdict

import pytest
import torch
from torch import nn

from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP

OPTIMISERS = {
    "PathSGD": lambda m: PathSGD(m, 0.05),
    "PathSGD momentum, seldom": lambda m: PathSGD(m, 0.02, momentum=0.9, refresh_every=7),
    "PathSGD nesterov": lambda m: PathSGD(m, 0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
    "PathSGD bounded growth, seldom": lambda m: PathSGD(
        m, 0.05, momentum=0.9, growth=0.01, refresh_every=7
    ),
    "PathAdam": lambda m: PathAdam(m, 0.01),
    "PathAdam seldom": lambda m: PathAdam(m, 0.01, refresh_every=7),
    "PathSOAP": lambda m: PathSOAP(m, 0.01),
    "PathSOAP seldom": lambda m: PathSOAP(m, 0.01, refresh_every=7, precondition_frequency=3),
    "PathMuon seldom": lambda m: PathMuon(m, 0.01, refresh_every=7),
    "PathAdam of the paper, seldom": lambda m: PathAdam(m, 0.01, metric="paper", refresh_every=7),
}
SELDOM = {name: make for name, make in OPTIMISERS.items() if "seldom" in name}


@pytest.fixture(params=list(OPTIMISERS))
def make(request):
    return OPTIMISERS[request.param]


def saved_and_loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumed_runs_continue_bit_for_bit(rnn, values, make, dtype):
    rnn.model, rnn.x, rnn.y = rnn.model.to(dtype), rnn.x.to(dtype), rnn.y.to(dtype)
    optimizer = make(rnn.model)
    rnn.train(optimizer, 10)
    checkpoint = saved_and_loaded(
        {"model": rnn.model.state_dict(), "optimizer": optimizer.state_dict()}
    )
    rnn.train(optimizer, 10)

    resumed = type(rnn.model)().to(dtype)
    resumed.load_state_dict(checkpoint["model"])
    again = make(resumed)
    again.load_state_dict(checkpoint["optimizer"])
    rnn.train(again, 10, resumed)
    assert torch.equal(values(resumed), values(rnn.model))


def test_resumed_batch_normalisation_continues_bit_for_bit(values, make):
    """Running statistics are zero when the first run is recorded and are not when the second is."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    x = torch.randn(8, 3, dtype=torch.float64) + 1

    def train(net, optimizer):
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    optimizer = make(model)
    train(model, optimizer)
    resumed = copy.deepcopy(model)
    again = make(resumed)
    again.load_state_dict(saved_and_loaded(optimizer.state_dict()))
    train(model, optimizer)
    train(resumed, again)
    assert torch.equal(values(resumed), values(model))


def counted(optimizer):
    """The steps at which the optimiser measures, from now on."""
    measure, calls = optimizer._refresh.measure, []

    def counting(*arguments, **options):
        calls.append(None)
        return measure(*arguments, **options)

    optimizer._refresh.measure = counting
    return calls


@pytest.mark.parametrize("make", SELDOM.values(), ids=SELDOM)
def test_the_metric_is_measured_every_seventh_step(mlp, make):
    optimizer = make(mlp.model)
    calls, counts = counted(optimizer), []
    for _ in range(15):
        mlp.train(optimizer, 1)
        counts.append(len(calls))
    assert counts == [1] * 7 + [2] * 7 + [3]


@pytest.mark.parametrize("make", SELDOM.values(), ids=SELDOM)
def test_a_loaded_metric_has_the_age_it_was_saved_with(mlp, make):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    again = make(mlp.model)
    again.load_state_dict(optimizer.state_dict())
    calls, counts = counted(again), []
    for _ in range(5):
        mlp.train(again, 1)
        counts.append(len(calls))
    assert counts == [0, 0, 0, 0, 1]


def test_state_dicts_survive_loading(rnn, make):
    optimizer = make(rnn.model)
    rnn.train(optimizer, 4)
    before = copy.deepcopy(optimizer.state_dict())
    again = make(rnn.model)
    again.load_state_dict(before)
    after = again.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after["state"].keys() == before["state"].keys()
    for index, state in before["state"].items():
        assert after["state"][index].keys() == state.keys()
        for key, value in state.items():
            found = after["state"][index][key]
            same = torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
            assert same, (index, key)


def test_every_parameter_that_learns_has_the_same_entries(make):
    """Including one that no gradient has reached: the keys of a state dict are predictable."""
    model = nn.ModuleDict(
        {"used": nn.RNN(2, 4, nonlinearity="relu"), "dead": nn.Linear(4, 2)}
    ).double()
    model["used"].bias_ih_l0.requires_grad_(False)
    model.forward = lambda x: model["used"](x)[0]
    optimizer = make(model)
    assert optimizer.state_dict()["state"] == {}
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 1, 2, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    states = optimizer.state_dict()["state"]
    learning = [index for index, p in enumerate(model.parameters()) if p.requires_grad]
    assert list(states) == learning
    kinds = {}
    for index, p in enumerate(model.parameters()):
        if p.requires_grad:  # a matrix and a vector may have other entries
            kinds.setdefault(p.dim(), set()).add(frozenset(states[index]))
    assert all(len(entries) == 1 for entries in kinds.values())


def test_states_have_the_shapes_of_their_parameters(rnn, make):
    optimizer = make(rnn.model)
    rnn.train(optimizer, 2)
    for p in rnn.model.parameters():
        index = [id(q) for q in rnn.model.parameters()].index(id(p))
        tensors = {
            key: value
            for key, value in optimizer.state_dict()["state"][index].items()
            if isinstance(value, torch.Tensor)
        }
        assert tensors["whitening"].shape == p.shape
        assert all(value.dtype == p.dtype for value in tensors.values())
        for key in {"momentum_buffer", "exp_avg", "exp_avg_sq"} & tensors.keys():
            assert tensors[key].shape == p.shape


def test_loading_does_not_tie_two_optimisers_together(mlp, values, make):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    twin = mlp.copy()
    again = make(twin)
    again.load_state_dict(optimizer.state_dict())
    mlp.train(again, 5, twin)
    alone = mlp.copy()
    third = make(alone)
    third.load_state_dict(optimizer.state_dict())
    mlp.train(third, 5, alone)
    assert torch.equal(values(twin), values(alone))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))]
)
def test_copies_with_their_model_continue_identically(rnn, values, make, duplicate):
    optimizer = make(rnn.model)
    rnn.train(optimizer, 5)
    model, twin = duplicate((rnn.model, optimizer))
    assert twin.model is model
    rnn.train(twin, 10, model)
    rnn.train(optimizer, 10)
    assert torch.equal(values(model), values(rnn.model))
    assert len(model._forward_pre_hooks) == len(rnn.model._forward_pre_hooks) == 1


def test_a_copy_of_the_optimiser_alone_brings_a_model_of_its_own(mlp, values, make):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    before = values(mlp.model)
    twin = copy.deepcopy(optimizer)
    assert twin.model is not mlp.model
    mlp.train(twin, 4, twin.model)
    assert torch.equal(values(mlp.model), before)
    mlp.train(optimizer, 4)
    assert torch.equal(values(twin.model), values(mlp.model))


def test_a_copied_optimiser_remembers_the_shapes_it_saw(mlp, values, make):
    optimizer = make(mlp.model)
    mlp.loss().backward()
    model, twin = copy.deepcopy((mlp.model, optimizer))
    optimizer.step()
    for p, q in zip(mlp.model.parameters(), model.parameters()):
        q.grad = p.grad.clone()
    twin.step()
    assert torch.equal(values(model), values(mlp.model))


@pytest.mark.parametrize(
    "clear", [lambda o: o.state.clear(), lambda o: setattr(o, "state", defaultdict(dict))]
)
def test_a_state_cleared_by_hand_starts_afresh(mlp, values, make, clear):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    model = mlp.copy()
    fresh = make(model)
    clear(optimizer)
    # What belongs to a group stays, as torch's settings do.
    fresh.param_groups[0].update(
        {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    )
    mlp.train(optimizer, 3)
    mlp.train(fresh, 3, model)
    assert torch.equal(values(model), values(mlp.model))


def test_a_state_of_other_groups_is_refused(mlp, make):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 1)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["params"] = saved["param_groups"][0]["params"][:-1]
    with pytest.raises(ValueError, match="doesn't match the size"):
        make(mlp.copy()).load_state_dict(saved)


def test_a_state_of_another_dtype_is_converted(mlp, make):
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    single = mlp.copy().float()
    again = make(single)
    again.load_state_dict(optimizer.state_dict())
    dtypes = {state.dense_whitening().dtype for state in again.state.values()}
    assert dtypes == {torch.float32}
    mlp.x, mlp.y = mlp.x.float(), mlp.y.float()
    mlp.train(again, 3, single)
    assert torch.isfinite(mlp.loss(single))


@pytest.mark.parametrize(
    "theirs", [torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)]
)
@pytest.mark.parametrize("ours", [PathAdam, PathSGD])
def test_the_state_of_another_kind_of_optimiser_is_refused(ours, theirs):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    other, optimizer = theirs(model.parameters()), ours(model, lr=1e-3)
    model(torch.ones(2, 3)).sum().backward()
    other.step()
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"0\.weight.*not that of a path optimiser"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.state_dict() == before
    optimizer.step()

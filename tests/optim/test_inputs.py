"""Optimisers learn input shapes from the forward pass: once per shape, storing no data."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

import pathsgd.metric.geometry
from pathsgd import PathAdam, PathSGD, kappa


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(8)


@pytest.fixture(params=[PathSGD, PathAdam], ids=["PathSGD", "PathAdam"])
def optimiser(request):
    return request.param


@pytest.fixture
def recordings(monkeypatch):
    """Grows by the shapes of the inputs whenever a model is recorded."""
    made, record = [], pathsgd.metric.structures.record

    def counting(model, call, *rest):
        made.append([tuple(a.shape) for a in call.args if isinstance(a, torch.Tensor)])
        return record(model, call, *rest)

    monkeypatch.setattr(pathsgd.metric.structures, "record", counting)
    return made


def train(model, optimizer, *batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_parameters_in_place_of_the_model_are_refused(mlp, optimiser):
    with pytest.raises(TypeError, match="the model itself"):
        optimiser(mlp.model.parameters(), lr=0.1)


def test_a_step_before_any_forward_pass_says_what_to_do(mlp, optimiser):
    optimizer = optimiser(mlp.model)
    mlp.model[0].weight.grad = torch.ones_like(mlp.model[0].weight)
    with pytest.raises(RuntimeError, match=r"no forward pass.*example_inputs="):
        optimizer.step()


def test_example_inputs_stand_in_for_a_forward_pass(mlp, values, optimiser):
    """The gradient comes from elsewhere: a copy of the model, say, on another machine."""
    optimizer = optimiser(mlp.model, example_inputs=mlp.x)
    before = values(mlp.model)
    mlp.model[0].weight.grad = torch.ones_like(mlp.model[0].weight)
    optimizer.step()
    assert not torch.equal(values(mlp.model), before)
    assert not mlp.model._forward_pre_hooks


def test_each_shape_is_recorded_once(rnn, recordings, optimiser):
    optimizer = optimiser(rnn.model)
    lengths = [4, 2, 4, 3, 2, 2, 3, 4]
    train(
        rnn.model,
        optimizer,
        *(torch.randn(8, length, 3, dtype=torch.float64) for length in lengths),
    )
    assert recordings == [[(8, 4, 3)], [(8, 2, 3)], [(8, 3, 3)]]


def test_a_smaller_last_batch_is_one_shape_more(mlp, recordings, optimiser):
    optimizer = optimiser(mlp.model)
    epoch = [torch.randn(size, 3, dtype=torch.float64) for size in (8, 8, 5)]
    train(mlp.model, optimizer, *epoch, *epoch, *epoch)
    assert recordings == [[(8, 3)], [(5, 3)]]


def test_a_metric_that_still_serves_costs_no_recording(rnn, recordings, optimiser):
    optimizer = optimiser(rnn.model, refresh_every=10)
    train(
        rnn.model,
        optimizer,
        *(torch.randn(8, length, 3, dtype=torch.float64) for length in range(1, 9)),
    )
    assert recordings == [[(8, 1, 3)]]


def test_the_number_of_remembered_shapes_is_bounded(mlp, monkeypatch, optimiser):
    monkeypatch.setattr(pathsgd.metric.structures, "_REMEMBERED", 4)
    optimizer = optimiser(mlp.model)
    train(
        mlp.model, optimizer, *(torch.randn(size, 3, dtype=torch.float64) for size in range(1, 8))
    )
    assert len(optimizer._refresh.geometry.structures) == 4


class Words(nn.Module):
    """Integer inputs: the stand-ins of a measurement look like any other call."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, words):
        return self.out(torch.relu(self.table(words)).mean(1))


def test_measurements_are_not_taken_for_forward_passes(recordings, optimiser):
    model = Words()
    optimizer = optimiser(model)
    words = torch.randint(0, 7, (6, 5))
    train(model, optimizer, words)
    assert [tuple(a.shape) for a in optimizer.inputs()] == [(6, 5)]
    kappa(model, torch.zeros(2, 3, dtype=torch.int64))
    assert [tuple(a.shape) for a in optimizer.inputs()] == [(6, 5)]
    train(model, optimizer, words)
    assert recordings == [[(6, 5)]]


def test_indices_are_not_structure(recordings, optimiser):
    """A batch of single words, others each time, is one shape."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.ReLU(), nn.Linear(4, 2))
    train(model, optimiser(model), *(torch.randint(0, 7, (6,)) for _ in range(4)))
    assert recordings == [[(6,)]]


def test_lengths_are_structure(recordings, optimiser):
    """Beside the sequences, integers say how long they are: another network."""

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = (
                nn.RNN(2, 3, nonlinearity="relu", batch_first=True),
                nn.Linear(3, 1),
            )

        def forward(self, x, lengths):
            return self.out(self.rnn(pack_padded_sequence(x, lengths, batch_first=True))[1][0])

    model = Padded()
    optimizer = optimiser(model)
    for lengths in ([4, 2], [3, 3], [4, 2]):
        optimizer.zero_grad()
        model(torch.randn(2, 4, 2), torch.tensor(lengths)).square().mean().backward()
        optimizer.step()
    assert len(recordings) == 2


def test_evaluations_do_not_count(rnn, optimiser):
    optimizer = optimiser(rnn.model)
    rnn.loss().backward()
    with torch.no_grad():
        rnn.model(torch.randn(1, 50, 3, dtype=torch.float64))
    assert [tuple(a.shape) for a in optimizer.inputs()] == [(8, 4, 3)]


def test_no_data_is_kept(mlp, optimiser):
    optimizer = optimiser(mlp.model)
    mlp.loss().backward()
    optimizer.step()
    (kept,) = optimizer.inputs()
    assert kept.shape == mlp.x.shape
    assert kept.untyped_storage().nbytes() == 8
    mlp.loss()
    (kept,) = optimizer.inputs()
    assert kept.untyped_storage().nbytes() == 8


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(2, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x, extra=None, scale=1.0):
        h = self.one(x) * scale
        return self.out(torch.relu(h if extra is None else h + self.two(extra)))


class KeywordOnly(Keywords):
    def forward(self, *, x):
        return super().forward(x)


def test_keyword_arguments_are_understood(optimiser):
    model = Keywords()
    optimizer = optimiser(model)
    before = model.two.weight.detach().clone()
    model(extra=torch.ones(5, 2), x=torch.ones(5, 3)).square().mean().backward()
    optimizer.step()
    assert [tuple(a.shape) for a in optimizer.inputs()] == [(5, 3), (5, 2)]
    assert not torch.equal(model.two.weight, before)


@pytest.mark.parametrize("example", [None, {"x": torch.ones(5, 3)}])
def test_keyword_only_arguments_are_understood(optimiser, example):
    model = KeywordOnly()
    optimizer = optimiser(model, example_inputs=example)
    before = model.one.weight.detach().clone()
    model(x=torch.ones(5, 3)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model.one.weight, before)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(2, 3, nonlinearity="relu")
        self.out = nn.Linear(3, 1)

    def forward(self, packed):
        return self.out(self.rnn(packed)[1][0])


def test_packed_sequences_keep_their_lengths_and_lose_their_data(recordings, optimiser):
    model = Packed()
    optimizer = optimiser(model)
    before = model.rnn.weight_hh_l0.detach().clone()

    def batch(*lengths):
        return pack_sequence([torch.randn(n, 2) for n in lengths])

    train(model, optimizer, batch(4, 2), batch(4, 2), batch(3, 3), batch(4, 2))
    assert len(recordings) == 2
    assert not torch.equal(model.rnn.weight_hh_l0, before)
    assert optimizer.inputs()[0].batch_sizes.tolist() == [2, 2, 1, 1]
    assert optimizer.inputs()[0].data.untyped_storage().nbytes() == 4


def test_a_model_inside_a_wrapper_is_seen(mlp, values, optimiser):
    """As with DataParallel or a compiled model, the optimiser gets the inner module."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    wrapped, before = Wrapper(mlp.model), values(mlp.model)
    optimizer = optimiser(mlp.model)
    mlp.train(optimizer, 1, wrapped)
    assert not torch.equal(values(mlp.model), before)


def test_calling_only_a_part_of_the_model_is_reported(mlp, optimiser):
    optimizer = optimiser(nn.Sequential(mlp.model))
    mlp.loss().backward()
    with pytest.raises(RuntimeError, match="not a part of it"):
        optimizer.step()


def test_buffers_and_modes_are_left_alone_by_measuring(optimiser):
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)
    )
    twin = copy.deepcopy(model)
    optimizer = optimiser(model, lr=0.0)
    for _ in range(3):
        x = torch.randn(8, 3)
        state = torch.get_rng_state()
        model(x).square().mean().backward()
        after = torch.get_rng_state()
        optimizer.step()
        assert torch.equal(torch.get_rng_state(), after)
        torch.set_rng_state(state)
        twin(x)
        torch.set_rng_state(after)
    assert model.training
    for (name, mine), other in zip(model.named_buffers(), twin.buffers()):
        assert torch.equal(mine, other), name


# ---- what is left behind -------------------------------------------------------------------------


def test_an_optimiser_that_is_gone_leaves_no_hook(mlp, optimiser):
    for _ in range(3):
        mlp.train(optimiser(mlp.model), 1)
    gc.collect()
    mlp.loss()
    assert not mlp.model._forward_pre_hooks
    assert not mlp.model._forward_pre_hooks_with_kwargs


def test_the_optimiser_can_be_collected(mlp, optimiser):
    optimizer = optimiser(mlp.model)
    mlp.train(optimizer, 1)
    reference = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert reference() is None


def test_a_copy_of_a_watched_model_is_not_watched(mlp, values, optimiser):
    optimizer = optimiser(mlp.model)
    mlp.train(optimizer, 1)
    copied = mlp.copy()
    torch.testing.assert_close(copied(mlp.x[:2]), mlp.model(mlp.x[:2]))
    assert not copied._forward_pre_hooks
    assert len(mlp.model._forward_pre_hooks) == 1
    mlp.loss()
    copied(mlp.x[:1])
    assert [tuple(a.shape) for a in optimizer.inputs()] == [(8, 3)]


def test_two_optimisers_share_a_model(mlp, values):
    """One for each layer: each moves its own, both see the shapes."""
    first, second = mlp.model[0], mlp.model[2]
    one = PathSGD(mlp.model, 0.1, params=first.parameters())
    two = PathAdam(mlp.model, 0.1, params=second.parameters())
    mlp.loss().backward()
    before = values(mlp.model)
    one.step()
    half = values(mlp.model)
    two.step()
    after = values(mlp.model)
    size = sum(p.numel() for p in first.parameters())
    assert not torch.equal(half[:size], before[:size]) and torch.equal(half[size:], before[size:])
    assert torch.equal(after[:size], half[:size]) and not torch.equal(after[size:], half[size:])

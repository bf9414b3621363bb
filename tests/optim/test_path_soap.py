"""PathSOAP: SOAP in path coordinates, at the metric's own speed."""

from __future__ import annotations

import copy

import pytest
import pytorch_optimizer
import torch
from torch import nn

from pathsgd import PathAdam, PathSOAP, check_invariance
from pathsgd.optim import InPathCoordinates
from pathsgd.optim.rules.soap import Soap


def square(width=6):
    """Gradients of full rank from the first batch on, so that eigenvectors are unique."""
    layers = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.LeakyReLU(0.3))]
    return nn.Sequential(*layers, nn.Linear(width, width)).double()


def batches(count, width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 16, width, generator=generator, dtype=torch.float64)


def train(net, optimizer, xs):
    losses = []
    for x in xs:
        optimizer.zero_grad()
        loss = (net(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize(
    "options", [{}, {"metric": "relative"}, {"clip": 0.05, "refresh_every": 3}], ids=str
)
def test_it_is_the_package_s_soap_in_path_coordinates(options, monkeypatch):
    """Without staggering. From step 10 on to 1e-5: that package computes QR in single precision."""
    monkeypatch.setattr(Soap, "arrange", lambda *_: None)
    torch.manual_seed(0)
    net = square()
    twin = copy.deepcopy(net)
    inner = pytorch_optimizer.SOAP(twin.parameters(), lr=1e-2, weight_decay=0.0)
    pairs = (
        (net, PathSOAP(net, 1e-2, **options)),
        (twin, InPathCoordinates(inner, twin, **options)),
    )
    for xs, error in ((batches(10), 1e-9), (batches(30, seed=1), 1e-5)):
        for model, optimizer in pairs:
            train(model, optimizer, xs)
        torch.testing.assert_close(values(net), values(twin), rtol=0, atol=error)


def test_without_bases_it_is_path_adam(rnn):
    """But for the first step, and where eps stands."""
    twin = rnn.copy()
    optimizer = PathSOAP(rnn.model, 1e-2, betas=(0.9, 0.99), eps=1e-12, max_dim=0)
    adam = PathAdam(twin, 1e-2, eps=1e-12)
    before = copy.deepcopy(rnn.model.state_dict())
    rnn.train(optimizer, 1)
    assert all(torch.equal(p, before[name]) for name, p in rnn.model.state_dict().items())
    rnn.train(optimizer, 10)
    rnn.train(adam, 10, twin)
    torch.testing.assert_close(values(rnn.model), values(twin), rtol=1e-4, atol=1e-6)


def test_what_is_remembered_stays_when_the_metric_is_measured_anew(rnn):
    """It is of whitened gradients: no moment, statistic or basis is converted."""
    optimizer = PathSOAP(rnn.model, 1e-2, refresh_every=100)
    rnn.train(optimizer, 5)
    kept = {p: copy.deepcopy(vars(state.rule)) for p, state in optimizer.state.items()}
    optimizer.zero_grad()
    rnn.loss().backward()
    for state in optimizer.state.values():
        state.age = 100
    optimizer.keep_up(optimizer.parts_with_gradients())
    for p, state in optimizer.state.items():
        assert state.age == 1
        for name, value in vars(state.rule).items():
            same = (
                torch.equal(value, kept[p][name])
                if isinstance(value, torch.Tensor)
                else value == kept[p][name]
            )
            assert same, name


def test_bases_are_updated_in_turn():
    net = square()
    optimizer = PathSOAP(net, 1e-2)
    train(net, optimizer, batches(2))
    states = [optimizer.state[p].rule for p in net.parameters() if p.dim() == 2]
    phases = [phase for s in states for phase in (s.left_phase, s.right_phase)]
    assert sorted(phases) == list(range(6))


def test_a_layer_that_joins_later_gets_the_phase_that_it_has_in_a_resumed_run():
    def begun(seed):
        torch.manual_seed(seed)
        net = square()
        net[4].requires_grad_(False)
        return net, PathSOAP(net, 1e-2)

    (net, optimizer), (again, resumed) = begun(0), begun(1)
    train(net, optimizer, batches(7))
    again.load_state_dict(copy.deepcopy(net.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for model, o in ((net, optimizer), (again, resumed)):
        model[4].requires_grad_(True)
        train(model, o, batches(25, seed=1))
    assert torch.equal(values(net), values(again))


@pytest.mark.parametrize("clip", ["auto", 0.1])
def test_100_steps_after_a_spike_training_is_where_it_was(clip):
    torch.manual_seed(0)
    net = square()
    optimizer, xs = PathSOAP(net, 1e-3, clip=clip), batches(500)
    before = sum(train(net, optimizer, xs[:300])[-20:])
    optimizer.zero_grad()
    (1e4 * (net(xs[300]) - xs[300]).square().mean()).backward()
    optimizer.step()
    after = train(net, optimizer, xs[301:401])
    assert all(map(torch.isfinite, net.parameters().__iter__().__next__().reshape(-1)))
    assert sum(after[-20:]) < before


def test_the_paper_s_metric_has_no_coordinates():
    with pytest.raises(ValueError, match="metric"):
        PathSOAP(square(), metric="paper")


@pytest.mark.parametrize(
    "options", [{}, {"sides": "smaller"}, {"flat_convolutions": True}], ids=str
)
def test_training_is_invariant(case, options):
    report = check_invariance(case.model, case.x, optimizer=lambda m: PathSOAP(m, 1e-2, **options))
    assert report.ok, report

"""The metric without its size."""

import math

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd import Metric, PathAdam
from pathsgd.metric.absolute import log_sizes, mean_log, resized
from pathsgd.metric.geometry import Geometry
from pathsgd.metric.whitening import whitenings


class Net(nn.Module):
    def __init__(self, hidden=64, bias=True):
        super().__init__()
        self.rnn = nn.RNN(3, hidden, nonlinearity="relu", bias=bias)
        self.out = nn.Linear(hidden, 3, bias=bias)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def both_metrics(model, x, rho=1.0):
    """1/sqrt(K) and 1/sqrt(K_abs) of every parameter."""
    measured, parameters = Geometry(model).measure((x,)), dict(model.named_parameters())
    relative = whitenings(measured, parameters, Metric(rho))
    return relative, resized(relative, log_sizes(relative, measured, parameters))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net(), torch.randn(6, 2, 3)


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_means_cancel_along_every_way_through_the_net(net, rho):
    _, found = both_metrics(*net, rho)
    assert mean_log(found["rnn.weight_hh_l0"]) == pytest.approx(0, abs=1e-6)
    into = mean_log(found["rnn.weight_ih_l0"])
    assert into == pytest.approx(mean_log(found["rnn.bias_ih_l0"]), abs=1e-6)
    assert into == pytest.approx(-mean_log(found["out.weight"]), abs=1e-6)
    assert torch.equal(found["out.bias"].flatten()[:1], torch.ones(1))  # no rescaling changes it


def test_only_the_size_of_a_parameters_metric_changes(net):
    relative, found = both_metrics(*net)
    for name, before in relative.items():
        ratio = found[name] / before
        torch.testing.assert_close(ratio, ratio.flatten()[:1].expand(ratio.shape))


def test_larger_weights_get_no_larger_steps(net):
    """The sizes of the first measurement stay, while relative ones grow with the weights."""
    model, x = net
    optimizers = [
        PathAdam(model, lr=0.0, metric=metric, example_inputs=(x,))
        for metric in ("relative", "absolute")
    ]
    sizes = []
    for factor in (1, 5):
        with torch.no_grad():
            for p in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0, model.out.weight):
                p.mul_(factor)
        model(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        sizes.append(
            [
                [mean_log(o.state[p].dense_whitening()) for p in model.parameters()]
                for o in optimizers
            ]
        )
    (relative, absolute), (relative_later, absolute_later) = sizes
    assert absolute_later == pytest.approx(absolute, abs=1e-5)
    assert relative_later[0] > relative[0] + 0.5 and relative_later[1] > relative[1] + 0.5


def test_a_balanced_net_is_stepped_as_adam_would():
    """As many inputs as outputs, equal weights: the metric is near 1, unlike the relative one."""
    torch.manual_seed(2)
    model = Net(512, bias=False)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02)
    relative, found = both_metrics(model, torch.randn(6, 2, 3))
    for name in found:
        assert float((found[name] - 1).abs().median()) < 0.25
    assert not 0.5 < float(relative["out.weight"].median()) < 2


def test_rescaled_units_keep_their_sizes(net):
    model, x = net
    _, before = both_metrics(model.double(), x.double())
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    pathsgd.random_rescaling(model, x.double(), generator=torch.Generator().manual_seed(3))
    _, after = both_metrics(model, x.double())
    for name, p in model.named_parameters():
        ratio = (p.detach() / weights[name]).expand(p.shape)
        torch.testing.assert_close(
            after[name].expand(p.shape), before[name].expand(p.shape) * ratio, rtol=1e-9, atol=0
        )


def test_a_parameter_with_entries_on_no_path_keeps_its_metric(net):
    model, x = net
    with torch.no_grad():
        model.out.weight[:, 0] = 0  # nothing leaves unit 0 ...
        model.rnn.weight_hh_l0[:, 0] = 0  # ... so nothing that enters it counts
    relative, found = both_metrics(model, x)
    assert torch.equal(found["rnn.weight_ih_l0"], relative["rnn.weight_ih_l0"])
    assert bool((relative["rnn.weight_ih_l0"] == 0).any())


def test_a_frozen_table_says_how_its_layer_is_scaled():
    """A fixed table of symbols: a larger one shrinks W_in's steps in proportion, nothing else."""
    found = []
    for scale in (1.0, 7.0):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Embedding.from_pretrained(scale * torch.eye(3)), Net(16))
        with torch.no_grad():
            model[1].rnn.weight_ih_l0.div_(scale)
        found.append(both_metrics(model, torch.zeros(6, 2, dtype=torch.long))[1])
        assert mean_log(found[-1]["0.weight"].diag()) == pytest.approx(math.log(scale), abs=0.1)
    for name, whitening in found[0].items():
        factor = 7 if name == "1.rnn.weight_ih_l0" else 1
        if not name.startswith("0."):
            torch.testing.assert_close(found[1][name] * factor, whitening)


def test_sizes_are_part_of_the_state(net):
    model, x = net
    optimizer = PathAdam(model, lr=1e-2, metric="absolute", example_inputs=(x,))
    model(x).square().mean().backward()
    optimizer.step()
    twin = PathAdam(model, lr=1e-2, metric="absolute", example_inputs=(x,))
    twin.load_state_dict(optimizer.state_dict())
    assert [twin.state[p].log_size for p in model.parameters()] == [
        optimizer.state[p].log_size for p in model.parameters()
    ]


def test_an_output_layer_of_zeros_gets_its_sizes_when_there_are_paths(net):
    model, x = net
    nn.init.zeros_(model.out.weight)
    optimizer = PathAdam(model, lr=1e-2, metric="absolute", example_inputs=(x,))
    for _ in range(3):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    sizes = [optimizer.state[p].log_size for p in (model.rnn.weight_hh_l0, model.out.weight)]
    assert sizes[0] == 0 and all(p.isfinite().all() for p in model.parameters())

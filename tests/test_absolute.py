"""The metric without its size."""

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd import PathAdam
from pathsgd.absolute import ENDS, absolute_whitenings, layers
from pathsgd.measure import Geometry
from pathsgd.normalize import whitenings


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
    relative = whitenings(measured, parameters, rho, relative=True)
    return relative, absolute_whitenings(relative, measured)


def mean_log(values):
    return float(values.double().log().mean())


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


def test_larger_weights_get_no_larger_steps():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 9, bias=False), nn.ReLU(), nn.Linear(9, 4, bias=False))
    x = torch.ones(2, 4)
    relative, found = both_metrics(model, x)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5)
    relative_later, later = both_metrics(model, x)
    for name in found:
        torch.testing.assert_close(later[name], found[name])
        torch.testing.assert_close(relative_later[name], 5 * relative[name])


def test_a_balanced_net_is_stepped_as_adam_would():
    """As many inputs as outputs, weights of one size: the metric is near 1, unlike the relative one."""
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
        torch.testing.assert_close(after[name].expand(p.shape), before[name].expand(p.shape) * ratio, rtol=1e-9, atol=0)


def test_a_parameter_with_entries_on_no_path_keeps_its_metric(net):
    model, x = net
    with torch.no_grad():
        model.out.weight[:, 0] = 0  # nothing leaves unit 0 ...
        model.rnn.weight_hh_l0[:, 0] = 0  # ... so nothing that enters it counts
    relative, found = both_metrics(model, x)
    assert torch.equal(found["rnn.weight_ih_l0"], relative["rnn.weight_ih_l0"])
    assert bool((relative["rnn.weight_ih_l0"] == 0).any())


def test_layers_are_told_apart_by_their_units(net):
    model, x = net
    edges = pathsgd.node_spaces(model, x).edges
    start, hidden = layers(edges["rnn.weight_ih_l0"])
    assert (start, layers(edges["out.weight"])[1]) == (ENDS, ENDS)
    assert layers(edges["rnn.weight_hh_l0"]) == (hidden, hidden)


def test_the_papers_geometry_has_no_absolute_form(net):
    with pytest.raises(ValueError, match="absolute"):
        PathAdam(net[0], geometry="paper", absolute=True)

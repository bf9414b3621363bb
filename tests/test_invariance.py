"""check_invariance: correct on invariant and non-invariant cases, without changing the model."""

import copy
import cProfile
import math

import pytest
import torch
from torch import nn

import pathsgd
from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP, check_invariance
from support.cases import CASES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(2, 4, 2, nonlinearity="relu", batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        states, last = self.rnn(x)
        return self.out(self.drop(states[:, -1])), last


@pytest.fixture
def model():
    torch.manual_seed(4)
    return Net()


X = torch.ones(5, 3, 2)


@pytest.mark.parametrize(
    "optimizer", [PathSGD, PathAdam, PathSOAP, PathMuon, lambda m: PathSGD(m, 0.05, momentum=0.9)]
)
def test_path_optimisers_stay_and_the_others_drift(model, optimizer):
    report = check_invariance(model, X, optimizer=optimizer, steps=10)
    ours = next(iter(report.drift))
    assert ours in ("PathSGD", "PathAdam", "PathSOAP", "PathMuon")
    assert report.invariant(ours) and report.ok
    assert not report.invariant("SGD") and not report.invariant("Adam")
    assert all(len(values) == 10 for values in report.drift.values())


@pytest.mark.parametrize("name", ["rnn with a learnt initial state", "bmm", "baddbmm", "einsum"])
def test_weights_that_do_not_enter_units_row_by_row(name):
    """One end of such a weight is the same node everywhere, the other varies along several axes."""
    case = CASES[name]
    report = check_invariance(case.build(name), *case.examples(), optimizer=PathAdam, steps=5)
    assert report.invariant("PathAdam"), report


def test_the_papers_path_adam_drifts(model):
    report = check_invariance(
        model, X, optimizer=lambda m: PathAdam(m, 0.01, metric="paper"), steps=10
    )
    assert report.invariant() and not report.invariant("PathAdam") and not report.ok


def test_a_class_of_torch_can_be_asked_too(model):
    report = check_invariance(model, X, optimizer=torch.optim.RMSprop, steps=3)
    assert not report.invariant("RMSprop")


def test_without_an_optimiser_it_checks_the_theorem(model):
    report = check_invariance(model, X)
    assert report.invariant(tolerance=1e-9)
    assert report.free_nodes == 8
    assert not report.drift


def test_it_reads_as_a_table(model):
    text = str(check_invariance(model, X, optimizer=PathAdam, steps=5))
    assert text.startswith("a twin of the model, its 8 free units")
    for word in ("output", "gamma^2", "kappa", "PathAdam", "SGD", "1 steps", "3 steps", "5 steps"):
        assert word in text


def test_the_model_is_left_alone(model):
    before, grads = copy.deepcopy(model.state_dict()), [p.grad for p in model.parameters()]
    state = torch.get_rng_state()
    check_invariance(model, X, optimizer=PathAdam, steps=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.grad for p in model.parameters()] == grads
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and next(model.parameters()).dtype == torch.float32
    assert not model._forward_pre_hooks


def test_a_wrong_rule_would_be_noticed(model, monkeypatch):
    """The report measures: a rescaling that changes the function shows in every line."""

    def broken(parameters, spaces, alpha):
        with torch.no_grad():
            parameters["rnn.weight_hh_l0"].mul_(1.5)

    monkeypatch.setattr(pathsgd.invariance, "apply", broken)
    report = check_invariance(model, X, optimizer=PathAdam, steps=2)
    assert min(report.output, report.gamma_sq, report.kappa, *report.drift["PathAdam"]) > 1e-3
    assert not report.invariant()


def test_integer_inputs_and_a_chosen_output():
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2))
    assert check_invariance(
        words, torch.tensor([[0, 1], [2, 3]]), optimizer=PathSGD, steps=3
    ).invariant("PathSGD")
    report = check_invariance(Net(), X, output=lambda result: result[0])
    assert report.invariant()


def test_errors_say_what_is_wrong(model):
    with pytest.raises(ValueError, match="no free node"):
        check_invariance(nn.Linear(2, 1), torch.ones(1, 2))
    with pytest.raises(ValueError, match="steps"):
        check_invariance(model, X, steps=0)
    with pytest.raises(TypeError, match="it made int"):
        check_invariance(model, X, optimizer=lambda m: 3)


def test_divergence_is_not_invariance(model):
    report = pathsgd.invariance.InvarianceReport(
        1, 0.1, 10, 0.0, 0.0, 0.0, {"SGD": [0.0, math.nan]}
    )
    assert not report.invariant("SGD")


def test_the_cost_grows_in_proportion_to_the_model():
    """deepcopy passes every tensor the memo of all earlier copies: nothing may walk through it."""

    def calls(depth):
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(depth)), nn.Linear(2, 1)
        )
        counter = cProfile.Profile()
        counter.runcall(check_invariance, model, torch.ones(1, 2))
        return sum(entry.callcount for entry in counter.getstats())

    calls(2)  # what is only done once
    assert calls(80) < 2.15 * calls(40)  # 2.24 when somebody did


def test_the_report_ends_with_a_verdict(model):
    assert str(check_invariance(model, X)).endswith(
        "the model is invariant: differences below 1e-06 are rounding"
    )
    report = check_invariance(
        model, X, optimizer=lambda m: PathAdam(m, 0.01, metric="paper"), steps=3
    )
    assert "training by PathAdam is NOT invariant" in str(report)


def test_an_optimiser_instead_of_its_class_is_named(model):
    with pytest.raises(TypeError, match=r"must be a class .* not PathAdam"):
        check_invariance(model, X, optimizer=PathAdam(model, 1e-3))

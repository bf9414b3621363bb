"""Any optimiser in path coordinates: PathSGD and PathAdam are cases; all are rescale-invariant."""

import copy

import pytest
import torch
from torch import nn

from pathsgd import PathAdam, PathSGD, check_invariance
from pathsgd.optim import DualNorm, InPathCoordinates


class Lion(torch.optim.Optimizer):
    """Signs of momentum (Chen et al., 2023), as somebody would write it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.sub_((0.9 * m + 0.1 * p.grad).sign(), alpha=group["lr"])
                    m.lerp_(p.grad, 0.01)


def muon(parameters):
    return torch.optim.Muon(
        [p for p in parameters if p.ndim == 2], 0.01, adjust_lr_fn="match_rms_adamw"
    )


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Lion": lambda p: Lion(p, 0.003),
}
if hasattr(torch.optim, "Muon"):  # torch 2.9 and later
    OPTIMISERS["Muon"] = muon


@pytest.fixture(params=list(OPTIMISERS))
def make(request):
    return OPTIMISERS[request.param]


@pytest.mark.parametrize(
    "options", [{}, {"metric": "relative"}, {"clip": None, "growth": None}, {"terms": "both"}]
)
def test_adam_in_path_coordinates_is_path_adam(case, values, options):
    twin = case.copy()
    adam = torch.optim.AdamW(case.model.parameters(), 0.01, betas=(0.9, 0.99), weight_decay=0.1)
    case.train(InPathCoordinates(adam, case.model, **options), 20)
    case.train(PathAdam(twin, 0.01, weight_decay=0.1, **options), 20, twin)
    torch.testing.assert_close(values(case.model), values(twin), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"refresh_every": 3}, {"clip": DualNorm(0.1)}], ids=str)
def test_sgd_in_path_coordinates_is_path_sgd(case, values, options):
    twin = case.copy()
    sgd = torch.optim.SGD(case.model.parameters(), 0.02, momentum=0.9)
    case.train(InPathCoordinates(sgd, case.model, **options), 20)
    case.train(PathSGD(twin, 0.02, momentum=0.9, **options), 20, twin)
    torch.testing.assert_close(values(case.model), values(twin), rtol=1e-8, atol=1e-10)


def test_training_does_not_feel_a_rescaling(case, make):
    report = check_invariance(
        case.model, case.x, optimizer=lambda m: InPathCoordinates(make(m.parameters()), m)
    )
    assert report.ok, report


def test_without_coordinates_it_does(mlp, make):
    report = check_invariance(mlp.model, mlp.x, optimizer=lambda m: make(m.parameters()))
    assert report.output < 1e-9
    assert not report.ok


def test_training_learns_and_gradients_stay(mlp, make):
    optimizer = InPathCoordinates(make(mlp.model.parameters()), mlp.model)
    before = mlp.loss().item()
    mlp.train(optimizer, 100)
    assert mlp.loss().item() < 0.9 * before
    optimizer.zero_grad()
    mlp.loss().backward()
    gradients = {name: p.grad.clone() for name, p in mlp.model.named_parameters()}
    optimizer.step()
    for name, p in mlp.model.named_parameters():
        assert torch.equal(p.grad, gradients[name])


# torch keeps a product of NAdam's in float32 and loads it in the parameters' dtype: NAdam is left
# out.
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("make", [make for name, make in OPTIMISERS.items() if name != "NAdam"])
def test_a_resumed_run_continues_bit_for_bit(case, values, make, every):
    optimizer = InPathCoordinates(make(case.model.parameters()), case.model, refresh_every=every)
    case.train(optimizer, 6)
    twin = case.copy()
    resumed = InPathCoordinates(make(twin.parameters()), twin, refresh_every=every)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    case.train(optimizer, 6)
    case.train(resumed, 6, twin)
    assert torch.equal(values(case.model), values(twin))


def test_schedulers_steer_the_optimiser_itself(mlp):
    inner = torch.optim.Adam(mlp.model.parameters(), 0.01)
    optimizer = InPathCoordinates(inner, mlp.model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    mlp.train(optimizer, 1)
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.005
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step()
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.0025


def test_a_closure_runs_once(mlp, values):
    twin = mlp.copy()
    optimizer = InPathCoordinates(torch.optim.Adam(mlp.model.parameters(), 0.01), mlp.model)
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(mlp.loss())
        losses[-1].backward()
        return losses[-1]

    assert optimizer.step(closure) is losses[0]
    assert len(losses) == 1
    mlp.train(InPathCoordinates(torch.optim.Adam(twin.parameters(), 0.01), twin), 1, twin)
    assert torch.equal(values(mlp.model), values(twin))


def test_parameters_added_later_move(mlp, values):
    first, *others = mlp.model.parameters()
    optimizer = InPathCoordinates(torch.optim.Adam([first], 0.01), mlp.model)
    mlp.train(optimizer, 1)
    before = [p.detach().clone() for p in others]
    optimizer.add_param_group({"params": others, "lr": 0.1})
    mlp.train(optimizer, 1)
    assert all(not torch.equal(p, old) for p, old in zip(others, before, strict=True))


def test_a_group_of_another_model_is_refused_and_leaves_no_trace(mlp):
    optimizer = InPathCoordinates(torch.optim.Adam(mlp.model.parameters(), 0.01), mlp.model)
    with pytest.raises(ValueError, match="does not belong to the model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(optimizer.param_groups) == len(optimizer.inner.param_groups) == 1
    mlp.train(optimizer, 1)


def test_a_step_that_fails_leaves_everything_as_it_was(mlp, values):
    class Failing(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            self.param_groups[0]["params"][0].add_(1.0)
            raise RuntimeError("out of luck")

    optimizer = InPathCoordinates(Failing(mlp.model.parameters(), 0.1), mlp.model)
    before = values(mlp.model).clone()
    mlp.loss().backward()
    gradients = [p.grad.clone() for p in mlp.model.parameters()]
    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.step()
    assert torch.equal(values(mlp.model), before)
    assert all(
        torch.equal(p.grad, g) for p, g in zip(mlp.model.parameters(), gradients, strict=True)
    )


def test_a_gradient_that_is_not_finite_moves_nothing(mlp, values):
    optimizer = InPathCoordinates(torch.optim.Adam(mlp.model.parameters(), 0.01), mlp.model)
    before = values(mlp.model).clone()
    mlp.loss().backward()
    next(mlp.model.parameters()).grad[0, 0] = torch.nan
    optimizer.step()
    assert torch.equal(values(mlp.model), before)
    assert not optimizer.inner.state


def test_growth_rates_are_bounded(rnn):
    optimizer = InPathCoordinates(torch.optim.SGD(rnn.model.parameters(), 10.0), rnn.model)
    rnn.train(optimizer, 20)
    assert optimizer.growth_rates
    assert torch.isfinite(rnn.loss())


class Averaging(torch.optim.SGD):
    """Swaps parameters outside of its steps, as schedule-free optimisers do."""

    def eval(self):
        """Nothing: it need not be called to be refused."""


REFUSED = {
    "no optimiser": (
        lambda m: m,
        TypeError,
        "the first argument is a torch optimiser, not Sequential",
    ),
    "ours": (lambda m: PathAdam(m), TypeError, "PathAdam steps in path coordinates already"),
    "LBFGS": (lambda m: torch.optim.LBFGS(m.parameters()), TypeError, "LBFGS searches along lines"),
    "averaging": (lambda m: Averaging(m.parameters(), 0.1), TypeError, "outside of its steps"),
}


@pytest.mark.parametrize("refused", list(REFUSED))
def test_what_does_not_fit_is_refused(refused):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    make, error, message = REFUSED[refused]
    with pytest.raises(error, match=message):
        InPathCoordinates(make(model), model)


def test_the_papers_metric_and_states_of_other_coordinates_are_refused(mlp):
    adam = torch.optim.Adam(mlp.model.parameters(), 0.01)
    with pytest.raises(ValueError, match="has no coordinates"):
        InPathCoordinates(adam, mlp.model, metric="paper")
    optimizer = InPathCoordinates(adam, mlp.model)
    with pytest.raises(ValueError, match="that of an optimiser in other coordinates"):
        optimizer.load_state_dict(adam.state_dict())

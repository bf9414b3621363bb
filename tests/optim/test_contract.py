"""torch.optim's contract, clause by clause."""

import copy

import pytest
import torch
from torch import nn

from pathsgd import PathAdam, PathMuon, PathSGD, PathSOAP

OPTIMISERS = {
    "PathSGD": lambda m, **k: PathSGD(m, **{"lr": 0.05, **k}),
    "PathSGD momentum": lambda m, **k: PathSGD(m, **{"lr": 0.02, "momentum": 0.9, **k}),
    "PathSGD of the paper": lambda m, **k: PathSGD(m, **{"lr": 0.01, "metric": "paper", **k}),
    "PathAdam": lambda m, **k: PathAdam(m, **{"lr": 0.01, **k}),
    "PathAdam of the paper": lambda m, **k: PathAdam(m, **{"lr": 0.01, "metric": "paper", **k}),
    "PathSOAP": lambda m, **k: PathSOAP(m, **{"lr": 0.01, **k}),
    "PathMuon": lambda m, **k: PathMuon(m, **{"lr": 0.01, **k}),
}


def begins(optimizer):
    """Steps that only begin what is remembered."""
    return int(isinstance(optimizer, PathSOAP))


@pytest.fixture(params=list(OPTIMISERS))
def make(request):
    return OPTIMISERS[request.param]


def test_it_is_a_torch_optimiser(mlp, make):
    optimizer = make(mlp.model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert "lr:" in repr(optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in mlp.model.parameters()
    ]


def test_every_parameter_moves_at_every_step(case, make):
    """Steps 1, 2 and 3, not just the first; and the step leaves the gradients as they are."""
    optimizer, fired = make(case.model), []
    case.train(optimizer, begins(optimizer))
    optimizer.register_step_pre_hook(lambda *_: fired.append("before"))
    optimizer.register_step_post_hook(lambda *_: fired.append("after"))
    for _ in range(3):
        optimizer.zero_grad()
        case.loss().backward()
        before = {n: (p.detach().clone(), p.grad.clone()) for n, p in case.model.named_parameters()}
        optimizer.step()
        for name, p in case.model.named_parameters():
            value, grad = before[name]
            assert torch.equal(p.grad, grad), name
            assert not grad.any() or not torch.equal(p, value), name
    assert fired == ["before", "after"] * 3


def test_a_graph_that_needs_the_values_before_the_step_refuses_its_backward(mlp, make):
    """autograd notices that parameters have changed, as after a step of torch's own optimisers."""
    optimizer, loss = make(mlp.model), mlp.loss()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_loss_falls(case, make):
    optimizer, before = make(case.model), case.loss().item()
    case.train(optimizer, 10)
    assert case.loss().item() < before


# ---- closures and gradients ----------------------------------------------------------------------


def test_a_closure_is_run_with_gradients_and_its_loss_returned(mlp, values, make):
    twin, before = mlp.copy(), mlp.loss().item()
    mlp.train(make(mlp.model), 1)
    optimizer = make(twin)

    def closure():
        optimizer.zero_grad()
        loss = mlp.loss(twin)
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() == before
    assert torch.equal(values(twin), values(mlp.model))


def test_the_gradients_of_a_closure_replace_older_ones(mlp, values, make):
    optimizer = make(mlp.model)
    for p in mlp.model.parameters():
        p.grad = torch.full_like(p, 1e3)
    twin = mlp.copy()
    optimizer.step(lambda: (optimizer.zero_grad(), mlp.loss().backward()))
    mlp.train(make(twin), 1, twin)
    assert torch.equal(values(twin), values(mlp.model))


def test_a_step_without_gradients_does_nothing(mlp, values, make):
    optimizer, before = make(mlp.model), values(mlp.model)
    optimizer.step()  # not even a forward pass is asked for
    assert optimizer.step(lambda: 7) == 7
    assert torch.equal(values(mlp.model), before)
    assert not optimizer.state


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(mlp, values, make, set_to_none):
    optimizer = make(mlp.model)
    mlp.loss().backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    assert all(p.grad is None if set_to_none else not p.grad.any() for p in mlp.model.parameters())
    before = values(mlp.model)
    optimizer.step()
    assert torch.equal(values(mlp.model), before)


def test_gradients_accumulate_over_backward_passes(mlp, values, make):
    twin = mlp.copy()
    mlp.train(make(mlp.model), 1)
    optimizer = make(twin)
    for half in (slice(0, 4), slice(4, 8)):
        ((twin(mlp.x[half]) - mlp.y[half]).square().mean() / 2).backward()
    optimizer.step()
    torch.testing.assert_close(values(twin), values(mlp.model), rtol=1e-9, atol=1e-12)


# ---- which parameters ----------------------------------------------------------------------------


def test_frozen_parameters_stay(mlp, values, make):
    mlp.model[0].requires_grad_(False)
    before = copy.deepcopy(mlp.model.state_dict())
    mlp.train(make(mlp.model), 3)
    assert torch.equal(mlp.model[0].weight, before["0.weight"])
    assert not torch.equal(mlp.model[2].weight, before["2.weight"])


def test_frozen_layers_can_be_thawed(mlp, make):
    mlp.model[0].requires_grad_(False)
    optimizer = make(mlp.model)
    mlp.train(optimizer, 3)
    before = mlp.model[0].weight.detach().clone()
    mlp.model[0].requires_grad_(True)
    mlp.train(optimizer, 1 + begins(optimizer))
    assert not torch.equal(mlp.model[0].weight, before)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_unused_parameters_stay(mlp, make, set_to_none):
    mlp.model.spare = nn.Parameter(torch.ones(3, dtype=torch.float64))
    if not set_to_none:
        mlp.model.spare.grad = torch.zeros_like(mlp.model.spare)
    mlp.model.forward = lambda x: mlp.model[2](mlp.model[1](mlp.model[0](x)))
    optimizer = make(mlp.model, weight_decay=0.0)
    for _ in range(2):
        mlp.loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    assert torch.equal(mlp.model.spare, torch.ones(3, dtype=torch.float64))


class TwoHeads(nn.Module):
    """One trunk; each forward pass uses one head."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x, head):
        return self.heads[head](torch.relu(self.trunk(x)))


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_heads_can_take_turns(make, refresh_every):
    torch.manual_seed(0)
    model = TwoHeads().double()
    optimizer = make(model, refresh_every=refresh_every)
    for step in range(8):
        optimizer.zero_grad()
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(6, 3, dtype=torch.float64), step % 2).square().mean().backward()
        optimizer.step()
        moved = {
            name
            for name, value in model.state_dict().items()
            if not torch.equal(value, before[name])
        }
        if step // 2 >= begins(optimizer):
            assert {name for name in moved if "heads" in name} == {
                f"heads.{step % 2}.{k}" for k in ("weight", "bias")
            }


def test_heads_can_be_trained_together(make):
    """Two forward passes, one step: the first one's head keeps the metric of its last use."""
    torch.manual_seed(0)
    model = TwoHeads().double()
    optimizer = make(model)
    x = torch.randn(6, 3, dtype=torch.float64)
    model(x, 0).square().mean().backward()
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    for _ in range(1 + begins(optimizer)):
        optimizer.zero_grad()
        (model(x, 0).square().mean() + model(x, 1).square().mean()).backward()
        optimizer.step()
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gradient_without_a_path_is_reported(make):
    """A loss that reads a second result of the model, which nobody measures."""

    class Auxiliary(TwoHeads):
        def forward(self, x):
            h = torch.relu(self.trunk(x))
            return self.heads[0](h), self.heads[1](h)

    model = Auxiliary().double()
    optimizer = make(model)
    first, second = model(torch.randn(6, 3, dtype=torch.float64))
    (first + second).square().mean().backward()
    with pytest.warns(RuntimeWarning, match="output=") as caught:
        optimizer.step()
    assert [str(w.message).split("'")[1] for w in caught] == ["heads.1.weight", "heads.1.bias"]


def test_layouts_that_change_keep_every_moment(mlp):
    """PathAdam with a constant metric is Adam on whitened coordinates, parameter by parameter."""
    optimizer = PathAdam(mlp.model, 0.01, clip=None, growth=None, refresh_every=10**9)
    mlp.train(optimizer, 1)
    named = dict(mlp.model.named_parameters())
    whitening = {name: optimizer.state[p].dense_whitening().clone() for name, p in named.items()}
    start = {name: p.detach().clone() for name, p in named.items()}
    plain = {name: torch.zeros_like(p).requires_grad_() for name, p in named.items()}
    adam = torch.optim.Adam(plain.values(), 0.01, betas=optimizer.defaults["betas"])
    for name, p in plain.items():
        p.grad = named[name].grad * whitening[name]
    adam.step()
    for name, p in plain.items():
        start[name] -= p.detach() * whitening[name]
    generator = torch.Generator().manual_seed(4)
    for step in range(12):
        for index, (name, p) in enumerate(named.items()):
            absent = (step + index) % 3 == 0
            p.grad = None if absent else torch.randn(p.shape, dtype=p.dtype, generator=generator)
            plain[name].grad = None if absent else p.grad * whitening[name]
        optimizer.step()
        adam.step()
    for name, p in named.items():
        torch.testing.assert_close(p.detach(), start[name] + plain[name].detach() * whitening[name])


# ---- groups and settings -------------------------------------------------------------------------


SETTINGS = [{"lr": 0.3}, {"weight_decay": 0.5}, {"maximize": True}]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("optimiser", [PathSGD, PathAdam])
@pytest.mark.parametrize("late", [False, True], ids=["params=", "add_param_group"])
def test_groups_have_their_own_settings(mlp, optimiser, setting, late):
    """Each layer moves as it does in a model where all layers have its settings."""
    whole = {}
    for name, options in (("plain", {}), ("set", setting)):
        model = mlp.copy()
        mlp.train(optimiser(model, clip=None, **options), 1, model)
        whole[name] = model
    first, last = mlp.model[0], mlp.model[2]
    group = {"params": list(last.parameters()), **setting}
    if late:
        optimizer = optimiser(mlp.model, clip=None, params=first.parameters())
        optimizer.add_param_group(group)
    else:
        optimizer = optimiser(mlp.model, clip=None, params=[{"params": first.parameters()}, group])
    mlp.train(optimizer, 1)
    torch.testing.assert_close(first.weight, whole["plain"][0].weight, rtol=1e-12, atol=0)
    torch.testing.assert_close(last.weight, whole["set"][2].weight, rtol=1e-12, atol=0)
    assert not torch.equal(last.weight, whole["plain"][2].weight)


def test_named_parameters_are_taken(mlp, make):
    optimizer = make(mlp.model, params=mlp.model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    mlp.train(optimizer, 2)


def test_maximize_is_a_step_of_the_negated_loss(mlp, values, make):
    twin = mlp.copy()
    mlp.train(make(mlp.model, maximize=True), 1)
    optimizer = make(twin)
    mlp.loss(twin).neg().backward()
    optimizer.step()
    assert torch.equal(values(twin), values(mlp.model))


def test_the_learning_rate_may_be_a_tensor(mlp, values, make):
    twin = mlp.copy()
    mlp.train(make(mlp.model, lr=0.03), 5)
    mlp.train(make(twin, lr=torch.tensor(0.03, dtype=torch.float64)), 5, twin)
    assert torch.equal(values(twin), values(mlp.model))


def test_settings_can_be_changed_while_training(mlp, values):
    """Momentum switched on half-way: what a scheduler does."""
    optimizer = PathSGD(
        mlp.model, 0.02, metric="relative"
    )  # which remembers nothing of its first steps
    mlp.train(optimizer, 2)
    twin = mlp.copy()
    optimizer.param_groups[0]["momentum"] = 0.9
    again = PathSGD(twin, 0.02, momentum=0.9, metric="relative")
    mlp.train(optimizer, 3)
    mlp.train(again, 3, twin)
    torch.testing.assert_close(values(twin), values(mlp.model), rtol=1e-12, atol=0)


def test_steps_count_on_when_parameters_are_laid_out_in_other_memory(make):
    """Channels-last weights and transposed views have strides of their own."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1)).double()
    twin = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert not twin[0].weight.is_contiguous()
    x = torch.randn(4, 2, 4, 4, dtype=torch.float64)
    for net in (model, twin):
        optimizer = make(net)
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(twin[0].weight, model[0].weight.detach(), rtol=1e-9, atol=1e-12)

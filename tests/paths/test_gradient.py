"""gamma^2 as a loss term: its gradient is 2 p kappa1, for every case, order and length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import pathsgd
from support import models
from support.cases import CASES


def gradients(value: Tensor, model: nn.Module) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(
        value, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, found))


@pytest.mark.parametrize("name", list(CASES))
def test_the_gradient_is_twice_p_kappa1(name: str) -> None:
    model, inputs = CASES[name].build(name), CASES[name].examples()
    kappa = pathsgd.kappa(model, *inputs)
    found = gradients(pathsgd.gamma_sq(model, *inputs), model)
    for parameter, p in model.named_parameters():
        torch.testing.assert_close(
            found[parameter], 2 * p.detach() * kappa[parameter], rtol=1e-9, atol=0
        )


class OfParameters(torch.autograd.Function):
    """A measurement as a function of the parameters' values, which gradcheck perturbs."""

    @staticmethod
    def forward(ctx: Any, model: nn.Module, measure: Any, *values: Tensor) -> Tensor:
        parameters = list(model.parameters())
        with torch.no_grad():
            for p, value in zip(parameters, values):
                p.copy_(value)
        with torch.enable_grad():
            result = measure(model)
            ctx.gradients = torch.autograd.grad(
                result, parameters, allow_unused=True, materialize_grads=True
            )
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(grads[0] * g for g in ctx.gradients)


@pytest.mark.parametrize(
    "name", ["mlp", "conv1d", "deep bidirectional rnn, last step", "hand-written loop", "chain"]
)
@pytest.mark.parametrize(
    "quantity", ["gamma_sq", "log_gamma_sq", "path_norm", "path_norm of order 1", "of order 0.5"]
)
def test_finite_differences_agree(name: str, quantity: str) -> None:
    function, _, order = quantity.partition("of order ")
    function = getattr(pathsgd, function.strip() or "path_norm")
    options = {"order": float(order)} if order else {}
    model, inputs = CASES[name].build(name), CASES[name].examples()
    values = [p.detach().clone().requires_grad_() for p in model.parameters()]
    measure = lambda net: function(net, *inputs, **options)  # noqa: E731
    assert torch.autograd.gradcheck(
        lambda *v: OfParameters.apply(model, measure, *v), values, rtol=1e-4
    )


@pytest.mark.parametrize("size", [0.01, 2.0])
def test_the_logarithm_has_a_finite_gradient_at_any_length(size: float) -> None:
    """Its sum over p dlog/dp of a matrix counts that matrix's uses on a path, for any gamma^2."""
    torch.manual_seed(0)
    net, x = models.ReadRNN(1, 3, 1, bias=False), torch.ones(4000, 1, 1)
    with torch.no_grad():
        net.weight_hh_l0.copy_(size * torch.eye(3))
        net.weight_ih_l0.fill_(1e-18 if size < 1 else 1.0)
    found = gradients(pathsgd.log_gamma_sq(net, x), net)
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in found.values())
    uses = {name: 0.5 * (found[name] * p).sum().item() for name, p in net.named_parameters()}
    assert uses["out.weight"] == pytest.approx(1, rel=1e-5)
    assert uses["weight_ih_l0"] == pytest.approx(1, rel=1e-5)
    q = size**2  # gamma^2 ~ 1 + q + ... + q^(T-1): the mean number of uses
    expected = q / (1 - q) if q < 1 else 4000 - 1 - 1 / (q - 1)
    assert uses["weight_hh_l0"] == pytest.approx(expected, rel=1e-4)


def test_second_derivatives_are_those_of_kappa() -> None:
    """1/2 d^2 gamma^2 / dp^2 = kappa1 + kappa2, through a recurrence too."""
    model, inputs = CASES["rnn"].build("rnn"), CASES["rnn"].examples()
    kappa = pathsgd.kappa(model, *inputs, terms="both")
    parameters = dict(model.named_parameters())
    first = torch.autograd.grad(
        pathsgd.gamma_sq(model, *inputs), list(parameters.values()), create_graph=True
    )
    for (name, p), gradient in zip(parameters.items(), first):
        for entry in range(p.numel()):
            (second,) = torch.autograd.grad(
                gradient.reshape(-1)[entry], p, retain_graph=True, materialize_grads=True
            )
            expected = kappa[name].reshape(-1)[entry]
            torch.testing.assert_close(second.reshape(-1)[entry] / 2, expected, rtol=1e-9, atol=0)


def test_no_gradient_where_none_is_wanted() -> None:
    net, x = models.mlp([2, 3, 1]), torch.ones(1, 2)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert not any(
                f(net, x).requires_grad
                for f in (pathsgd.gamma_sq, pathsgd.log_gamma_sq, pathsgd.path_norm)
            )
    for p in net.parameters():
        p.requires_grad_(False)
    assert not pathsgd.gamma_sq(net, x).requires_grad


def test_frozen_parameters_get_none_and_the_loss_s_own_gradient_is_added() -> None:
    net, x = models.mlp([2, 3, 1]), torch.rand(4, 2)
    net[0].weight.requires_grad_(False)
    net(x).sum().backward()
    data = net[2].weight.grad.clone()
    net.zero_grad()
    (net(x).sum() + 0.5 * pathsgd.log_gamma_sq(net, x)).backward()
    term = net[2].weight.detach() * pathsgd.kappa(net, x, relative=True)["2.weight"]
    torch.testing.assert_close(net[2].weight.grad, data + term.float())
    assert net[0].weight.grad is None


def test_where_no_path_is_left_the_gradient_of_gamma_is_zero() -> None:
    net, x = models.mlp([2, 3, 1], bias=False), torch.ones(1, 2)
    with torch.no_grad():
        net[2].weight.zero_()
    for quantity in (pathsgd.gamma_sq, pathsgd.path_norm):
        assert all(bool((g == 0).all()) for g in gradients(quantity(net, x), net).values())


def test_the_term_does_not_depend_on_the_scaling() -> None:
    """The term is invariant under node-wise rescaling: its value, and p times its gradient."""
    net, x = models.mlp([3, 5, 2]).double(), torch.ones(1, 3, dtype=torch.float64)
    before = gradients(pathsgd.log_gamma_sq(net, x), net)
    shares = {name: g * p.detach() for (name, g), p in zip(before.items(), net.parameters())}
    value = pathsgd.log_gamma_sq(net, x).item()
    pathsgd.random_rescaling(net, x, generator=torch.Generator().manual_seed(1))
    assert pathsgd.log_gamma_sq(net, x).item() == pytest.approx(value, rel=1e-12)
    after = gradients(pathsgd.log_gamma_sq(net, x), net)
    for (name, g), p in zip(after.items(), net.parameters()):
        torch.testing.assert_close(g * p.detach(), shares[name], rtol=1e-9, atol=0)


class Counted(TorchDispatchMode):
    """How many operations torch is asked for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mlp", "deep rnn", "hand-written loop"])
def test_the_gradient_costs_about_one_kappa1(name: str) -> None:
    model, inputs = CASES[name].build(name), CASES[name].examples()
    with Counted() as term:
        pathsgd.gamma_sq(model, *inputs).backward()
    with Counted() as kappa:
        pathsgd.kappa(model, *inputs)
    assert term.count < 1.5 * kappa.count

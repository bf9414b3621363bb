"""The paper's theorems, and facts of the mathematics, as tests by name."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pathsgd
from oracle import Network, feasible_rescalings, log_factors
from support import models
from support.cases import CASES, Case

# Free nodes exist, and the model computes in float64 throughout.
FREE = [
    name
    for name, case in CASES.items()
    if name != "there and back"
    and pathsgd.node_spaces(case.build(name), *case.examples()).count > 0
]


def rescaled(model: nn.Module, inputs: tuple[Tensor, ...], seed: int = 0) -> nn.Module:
    """A twin with every free node rescaled by a factor from 1e-2 to 1e2."""
    generator = torch.Generator().manual_seed(seed)
    return pathsgd.random_rescaling(
        copy.deepcopy(model), *inputs, low=1e-2, high=1e2, generator=generator
    )


def first_tensor(result: object) -> Tensor:
    return result if isinstance(result, Tensor) else first_tensor(result[0])  # type: ignore[index]


@pytest.mark.parametrize("name", FREE)
def test_theorem_1_feasible_rescalings_leave_the_function_and_gamma_unchanged(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(name), case.examples()
    twin = rescaled(model, inputs)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))
    expected, found = first_tensor(model(*inputs)).detach(), first_tensor(twin(*inputs)).detach()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))
    torch.testing.assert_close(
        pathsgd.gamma_sq(twin, *inputs), pathsgd.gamma_sq(model, *inputs), rtol=1e-12, atol=0
    )


def path_sgd_step(model: nn.Module, inputs: tuple[Tensor, ...], terms: str) -> None:
    """p <- p - lr * grad / kappa, as the paper writes it."""
    model.zero_grad()
    (first_tensor(model(*inputs)) - 1).square().mean().backward()
    kappa = pathsgd.kappa(model, *inputs, terms=terms)
    with torch.no_grad():
        for name, p in model.named_parameters():
            used = (kappa[name] > 0) & (p.grad is not None)
            p.sub_(1e-3 * torch.where(used, p.grad / kappa[name], 0.0))


@pytest.mark.parametrize("terms", ["first", "both"])
@pytest.mark.parametrize(
    "name",
    ["mlp", "rnn", "deep rnn", "bidirectional rnn", "hand-written loop", "residual", "conv2d"],
)
def test_theorem_2_a_step_after_rescaling_is_the_rescaling_of_the_step(
    name: str, terms: str
) -> None:
    case = CASES[name]
    model, inputs = case.build(name), case.examples()
    stepped_then_rescaled = copy.deepcopy(model)
    path_sgd_step(stepped_then_rescaled, inputs, terms)
    rescaled_then_stepped = rescaled(model, inputs)
    path_sgd_step(rescaled_then_stepped, inputs, terms)
    expected = rescaled(stepped_then_rescaled, inputs)
    for p, q in zip(rescaled_then_stepped.parameters(), expected.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.reference is not None])
def test_the_free_nodes_are_the_feasible_rescalings_of_the_graph(name: str) -> None:
    """Each free node is one independent rescaling of the parameters.

    The library keeps all uses of a weight between the same two nodes. The linear algebra of the
    reference also finds rescalings in which a shared weight scales alike between different nodes;
    such cases are marked in the table.
    """
    case = CASES[name]
    assert case.reference is not None
    network, _ = case.reference()
    found = pathsgd.node_spaces(case.build(name), *case.examples()).count
    dimension = _parameter_rescalings(network)
    assert found < dimension if case.fewer_nodes else found == dimension


def _parameter_rescalings(network: Network) -> int:
    """How many independent ways of changing the parameters the feasible rescalings have."""
    basis = feasible_rescalings(network)
    return (
        int(np.linalg.matrix_rank([log_factors(network, beta) for beta in basis], tol=1e-9))
        if len(basis)
        else 0
    )


@pytest.mark.parametrize(
    "name", ["mlp", "residual", "conv1d", "conv2d", "conv3d", "batch norm", "embedding"]
)
def test_kappa2_is_exactly_zero_without_sharing_along_a_path(name: str) -> None:
    case = CASES[name]
    second = pathsgd.kappa(case.build(name), *case.examples(), terms="second")
    assert all(bool((value == 0).all()) for value in second.values())


@pytest.mark.parametrize("uses", [1, 2, 3, 6])
def test_a_weight_used_k_times_on_a_chain_has_kappa_k_times_2k_minus_1(uses: int) -> None:
    torch.manual_seed(uses)
    chain = models.Chain(uses).double()
    rest = float(chain.others.detach().square().prod())
    expected = uses * (2 * uses - 1) * float(chain.shared.detach()) ** (2 * uses - 2) * rest
    found = pathsgd.kappa(chain, torch.ones(1, 1, dtype=torch.float64), terms="both")["shared"]
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_figure_1_two_layers_of_two_units_rescaled() -> None:
    """The paper's first figure: a 2-layer RNN with 2 units each, one factor per unit for all steps.

    A layer's input weights get a_j / a_k(below), its recurrent weights a_j / a_k, output weights 1
    / a_k.
    """
    torch.manual_seed(0)
    net = models.ReadRNN(2, 2, 1, num_layers=2, bias=False).double()
    x = torch.randn(5, 3, 2, dtype=torch.float64)
    a = torch.tensor([2.0, 1 / 3, 5.0, 0.25], dtype=torch.float64)
    lower, upper = a[:2], a[2:]
    expected = {
        "weight_ih_l0": net.weight_ih_l0 * lower[:, None],
        "weight_hh_l0": net.weight_hh_l0 * lower[:, None] / lower,
        "weight_ih_l1": net.weight_ih_l1 * upper[:, None] / lower,
        "weight_hh_l1": net.weight_hh_l1 * upper[:, None] / upper,
        "out.weight": net.out.weight / upper,
    }
    expected = {name: value.detach().clone() for name, value in expected.items()}
    output, gamma_sq = net(x).detach(), pathsgd.gamma_sq(net, x)
    spaces = pathsgd.node_spaces(net, x)
    assert spaces.count == 4
    order = [
        int(i)
        for side in ("weight_ih_l0", "weight_ih_l1")
        for i in spaces.edges[side].target.reshape(-1)
    ]
    alpha = torch.empty(4, dtype=torch.float64)
    alpha[torch.tensor(order) - 1] = a
    pathsgd.rescale_nodes(net, x, alpha=alpha)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-14, atol=0)
    torch.testing.assert_close(net(x), output, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(pathsgd.gamma_sq(net, x), gamma_sq, rtol=1e-13, atol=0)


@pytest.mark.parametrize("steps", [100, 750])
def test_kappa2_outweighs_kappa1_on_the_diagonal_of_an_identity_matrix(steps: int) -> None:
    """An identity recurrent matrix keeps all paths: diagonal kappa2/kappa1 is 4 (T - 2) / 3."""
    net = models.ReadRNN(1, 3, 1, bias=False).double()
    with torch.no_grad():
        net.weight_hh_l0.copy_(torch.eye(3))
    x = torch.ones(steps, 1, 1, dtype=torch.float64)
    ratio = (
        pathsgd.kappa(net, x, terms="second")["weight_hh_l0"]
        / pathsgd.kappa(net, x)["weight_hh_l0"]
    )
    assert ratio.diagonal().tolist() == pytest.approx([4 * (steps - 2) / 3] * 3, rel=1e-9)


def test_the_paper_convention_is_a_quarter_of_the_exact_second_term() -> None:
    case: Case = CASES["deep rnn"]
    model, inputs = case.build("deep rnn"), case.examples()
    exact = pathsgd.kappa(model, *inputs, terms="second")
    paper = pathsgd.kappa(model, *inputs, terms="second", convention="paper")
    both = pathsgd.kappa(model, *inputs, terms="both", convention="paper")
    first = pathsgd.kappa(model, *inputs)
    for name in exact:
        torch.testing.assert_close(paper[name], exact[name] / 4)
        torch.testing.assert_close(both[name], first[name] + exact[name] / 4)
    assert math.isclose(float(exact["weight_hh_l0"].sum()), 4 * float(paper["weight_hh_l0"].sum()))

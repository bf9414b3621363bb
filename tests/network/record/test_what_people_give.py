"""The forms in which people call their models, and what they do inside forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pathsgd
from pathsgd import UnsupportedOperation

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
LINKS = torch.tensor([[0.0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 1, 0, 2], [0, 0, 1, 0]])


def gamma(model: nn.Module, *inputs: Any, **options: Any) -> float:
    return float(pathsgd.gamma_sq(model, *inputs, **options).detach())


class Net(nn.Module):
    """Two layers; subclasses say how they are called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(3, 8), nn.Linear(8, 2)

    def run(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class ByKeyword(Net):
    def forward(self, *, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.run(x)


class ByAnyKeyword(Net):
    def forward(self, **batch: Tensor) -> Tensor:  # type: ignore[override]
        return self.run(batch["x"])


class ByBatch(Net):
    def forward(self, batch: Any) -> Tensor:
        return self.run(batch["x"] if isinstance(batch, dict) else batch.x)


@dataclass
class Batch:
    x: Tensor
    name: str = ""


@dataclass(frozen=True, slots=True)
class Slots:
    x: Tensor


class Graph:
    """Like torch_geometric's: a callable object that holds its tensors in a store of its own."""

    def __init__(self, x: Tensor) -> None:
        self._store = {"x": x}

    @property
    def x(self) -> Tensor:
        return self._store["x"]

    def __call__(self, *names: str) -> Any:
        raise AssertionError("nobody calls it")


FORMS = [
    (ByKeyword, {"x": X}, lambda m: m(x=X)),
    (ByAnyKeyword, {"x": X}, lambda m: m(x=X)),
    (ByBatch, {"x": X}, lambda m: m({"x": X})),
    (ByBatch, Batch(X), lambda m: m(Batch(X))),
    (ByBatch, Slots(X), lambda m: m(Slots(X))),
    (ByBatch, Graph(X), lambda m: m(Graph(X))),
]


@pytest.mark.parametrize(
    "form", FORMS, ids=["keyword", "any keyword", "dict", "dataclass", "slots", "graph"]
)
def test_every_form_of_inputs_is_measured_and_learnt_from_a_call(form: Any) -> None:
    make, example, call = form
    assert gamma(make(), example) == pytest.approx(gamma(Net(), X))
    for options in ({}, {"example_inputs": example}):
        model, plain = make(), Net()
        for net, given, run in ((model, options, call), (plain, {}, lambda m: m(X))):
            optimizer = pathsgd.PathAdam(net, lr=1e-2, **given)
            run(net).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), plain.state_dict())


class OverLinks(Net):
    """A product with a constant sparse matrix, in each of torch's spellings."""

    def __init__(self, links: Tensor, product: Any) -> None:
        super().__init__()
        self.register_buffer("links", links)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.product(self.links, self.one(x))))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "product", [torch.matmul, torch.mm, torch.sparse.mm, torch.spmm, lambda a, b: a @ b]
)
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_constants_may_be_sparse(product: Any, layout: str) -> None:
    sparse = LINKS.to_sparse() if layout == "coo" else LINKS.to_sparse_csr()
    dense = OverLinks(LINKS, torch.matmul)
    assert gamma(OverLinks(sparse, product), X) == pytest.approx(gamma(dense, X))
    assert pathsgd.node_spaces(OverLinks(sparse, product), X).count == 8


def test_a_sparse_matrix_among_the_inputs_is_structure() -> None:
    class Given(Net):
        def forward(self, x: Tensor, links: Tensor) -> Tensor:  # type: ignore[override]
            return self.two(torch.relu(links @ self.one(x)))

    other = (LINKS + torch.eye(4)).to_sparse()
    assert gamma(Given(), X, LINKS.to_sparse()) == pytest.approx(
        gamma(OverLinks(LINKS, torch.matmul), X)
    )
    assert gamma(Given(), X, other) != pytest.approx(gamma(Given(), X, LINKS.to_sparse()))
    model = Given()
    optimizer = pathsgd.PathAdam(model)
    for links in (LINKS.to_sparse(), other, LINKS.to_sparse()):
        optimizer.zero_grad()
        model(X, links).square().sum().backward()
        optimizer.step()
    assert len(optimizer._refresh.geometry.structures) == 2
    make = lambda m: pathsgd.PathAdam(m)  # noqa: E731
    assert pathsgd.check_invariance(model, X, other, optimizer=make, steps=2).ok


class Slope(Net):
    """Its second result is a derivative that it takes itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = x.detach().requires_grad_()
        u = self.run(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return u, slope


def test_a_derivative_inside_forward_is_beside_the_measured_output() -> None:
    assert gamma(Slope(), X) == pytest.approx(gamma(Net(), X))
    model = Slope()
    optimizer = pathsgd.PathAdam(model)
    u, slope = model(X)
    (u.square().sum() + slope.square().sum()).backward()
    optimizer.step()
    with pytest.raises(UnsupportedOperation, match="derivatives taken inside forward"):
        gamma(model, X, output=1)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

    def get_action_and_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        choices = torch.distributions.Categorical(logits=self.actor(x))
        action = choices.sample()
        return choices.log_prob(action), self.critic(x)


def test_an_agent_without_forward() -> None:
    agent, validates = Agent(), torch.distributions.Distribution._validate_args
    with pytest.raises(TypeError, match=r"Agent has no forward.*model.forward ="):
        gamma(agent, X)
    optimizer = pathsgd.PathAdam(agent, output=["actor", "critic"])
    agent.get_action_and_value(X)[1].sum().backward()
    with pytest.raises(RuntimeError, match="has no forward"):
        optimizer.step()
    agent.forward = agent.get_action_and_value  # type: ignore[method-assign]
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    log_prob, value = agent(X)
    (log_prob.sum() + value.sum()).backward()
    optimizer.step()
    assert all(bool((p != before[name]).any()) for name, p in agent.named_parameters())
    assert torch.distributions.Distribution._validate_args == validates


@pytest.mark.parametrize("way", ["around", "inside", "in place"])
def test_shapes_are_learnt_through_compiled_models(way: str) -> None:
    model, plain = Net(), Net()
    compiled = torch.compile(model, backend="eager") if way != "in place" else model
    ours = pathsgd.PathAdam(compiled if way == "around" else model, lr=1e-2)
    if way == "in place":
        model.compile(backend="eager")
    theirs = pathsgd.PathAdam(plain, lr=1e-2)
    for net, optimizer in ((compiled, ours), (plain, theirs)):
        net(X).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_positions_looked_up_are_the_rows_they_take() -> None:
    """An embedding of arange(T) and weight[:T] are one function with one gamma^2; words are not."""

    class Placed(Net):
        def __init__(self, rows: Any) -> None:
            super().__init__()
            self.table, self.rows = nn.Embedding(9, 8), rows

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.relu(self.one(x) + self.rows(self.table, x)))

    looked_up = gamma(Placed(lambda table, x: table(torch.arange(x.shape[1]))), X[None])
    sliced = gamma(Placed(lambda table, x: table.weight[: x.shape[1]]), X[None])
    assert looked_up == pytest.approx(sliced)

"""capturable=True: a step on a device can be captured and replayed without the host (CUDA graphs).

`Captured` stands for such a graph: it keeps the operations of a step with their tensors and repeats
them. No Python code runs again, so a number that the host put into an operation stays as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from devices.test_steps import assert_same, pair, train
from pathsgd import Metric, PathAdam, PathSGD
from support.device import DEVICE, counting


class Captured(TorchDispatchMode):
    """Records the operations done inside; `replay` repeats them, each on the new results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __enter__(self) -> Captured:
        torch.get_device_module(DEVICE).capturing = True
        return super().__enter__()  # type: ignore[return-value]

    def __exit__(self, *error: Any) -> None:
        torch.get_device_module(DEVICE).capturing = False
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, tree_flatten(result)[0]))
        return result

    def replay(self) -> None:
        made: dict[int, Any] = {}

        def now(x: Any) -> Any:
            return made.get(id(x), x) if isinstance(x, Tensor) else x

        with torch.no_grad():
            for func, args, kwargs, before in self.operations:
                results = tree_flatten(func(*tree_map(now, args), **tree_map(now, kwargs)))[0]
                for old, new in zip(before, results):
                    if isinstance(old, Tensor):
                        made[id(old)] = new


OPTIMIZERS: dict[str, Callable[..., PathAdam | PathSGD]] = {
    "PathAdam": lambda m, lr, **k: PathAdam(m, lr, **k),
    "PathAdam, paper": lambda m, lr, **k: PathAdam(m, lr, metric="paper", **k),
    "PathAdam, rho .5, decay": lambda m, lr, **k: PathAdam(
        m, lr, metric=Metric(rho=0.5), weight_decay=0.1, **k
    ),
    "PathSGD": lambda m, lr, **k: PathSGD(m, lr, **k),
    "PathSGD, momentum, decay": lambda m, lr, **k: PathSGD(
        m, lr, momentum=0.9, weight_decay=0.1, **k
    ),
}
EVERY = 4


def backward(model: nn.Module, x: Tensor, step: int) -> None:
    """Gradients in the tensors that hold them already, as a captured backward pass leaves them."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    (model(x) * (1 + step)).square().mean().backward()


def rate(step: int) -> float:
    return 1e-2 / (1 + step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "rnn", "batch norm", "batch norms"])
def test_a_captured_step_is_the_step(name: str, optimizer: str) -> None:
    """Eager steps measure, replayed ones do not; a schedule writes the lr tensor in place."""
    model, x, there, x_there = pair(name)
    lr = torch.tensor(rate(0)).to(DEVICE)
    here_opt = OPTIMIZERS[optimizer](model, rate(0), refresh_every=EVERY)
    there_opt = OPTIMIZERS[optimizer](there, lr, capturable=True)
    graph = None
    for step in range(3 * EVERY):
        backward(model, x, step)
        here_opt.param_groups[0]["lr"] = rate(step)
        here_opt.step()
        backward(there, x_there, step)
        lr.copy_(torch.tensor(rate(step)))
        if step % EVERY == 0:
            there_opt.step()
        elif graph is None:
            with Captured() as graph, counting() as counts:
                there_opt.step()
            assert counts.syncs == 0, counts.waits
        else:
            graph.replay()
    assert_same(model, there)


def test_the_count_of_steps_is_saved() -> None:
    model, x, there, x_there = pair("rnn")
    here_opt, there_opt = (
        PathAdam(model, refresh_every=3),
        PathAdam(there, refresh_every=3, capturable=True),
    )
    train(model, here_opt, x, 4)
    train(there, there_opt, x_there, 4)
    saved = copy.deepcopy(there_opt.state_dict())
    assert {state["step"] for state in saved["state"].values()} == {4}
    again = copy.deepcopy(there)
    resumed = PathAdam(again, refresh_every=3, capturable=True)
    resumed.load_state_dict(saved)
    for m, o in ((there, there_opt), (again, resumed)):
        train(m, o, x_there, 4)
    train(model, here_opt, x, 4)
    assert_same(model, there)
    assert_same(model, again)


def test_parameters_that_join_later_count_from_their_own_first_step() -> None:
    model, x, there, x_there = pair("mlp")
    for m, inputs, options in ((model, x, {}), (there, x_there, {"capturable": True})):
        optimizer = PathAdam(m, **options)
        m[0].weight.requires_grad_(False)
        train(m, optimizer, inputs, 3)
        m[0].weight.requires_grad_(True)
        train(m, optimizer, inputs, 3)
        steps = [state["step"] for state in optimizer.state_dict()["state"].values()]
        assert sorted(steps) == [3, 6, 6, 6, 6, 6]
    assert_same(model, there)


@pytest.mark.parametrize("bad_at", [0, 3])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_not_counted(bad_at: int) -> None:
    model, x, there, x_there = pair("rnn")
    here_opt, there_opt = PathAdam(model), PathAdam(there, capturable=True)
    for m, o, inputs in ((model, here_opt, x), (there, there_opt, x_there)):
        for step in range(6):
            backward(m, inputs, step)
            if step == bad_at:
                next(iter(m.parameters())).grad[0, 0] = torch.inf
            o.step()
    assert_same(model, there)
    assert {state["step"] for state in there_opt.state_dict()["state"].values()} == {5}


@pytest.mark.parametrize("name", ["mlp", "cnn", "rnn", "batch norm", "batch norms"])
def test_operations_of_a_step(name: str) -> None:
    """At most four times those of torch's, when both can be captured."""
    _, _, there, x = pair(name)
    theirs = torch.optim.Adam(there.parameters(), foreach=True, capturable=True)
    launches = train(there, theirs, x, 3)[-1].launches
    assert (
        train(there, PathAdam(there, refresh_every=10, capturable=True), x, 3)[-1].launches
        <= 4 * launches
    )


def test_the_first_step_cannot_be_captured() -> None:
    _, _, there, x = pair("mlp")
    optimizer = PathAdam(there, capturable=True)
    backward(there, x, 0)
    with Captured(), pytest.raises(RuntimeError, match="take one step before"):
        optimizer.step()


@pytest.mark.parametrize("optimizer", [PathAdam, PathSGD])
def test_on_the_cpu_there_is_nothing_to_capture(optimizer: type) -> None:
    model, x, _, _ = pair("mlp")
    before = copy.deepcopy(model.state_dict())
    made = optimizer(model, capturable=True)
    backward(model, x, 0)
    with pytest.raises(ValueError, match="capturable=True"):
        made.step()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

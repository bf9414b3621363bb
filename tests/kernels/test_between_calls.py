"""Operands that change what they are between two calls.

The prepared arguments of the kernel may not outlive it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pathsgd
from pathsgd.kernels import native
from pathsgd.kernels.update import ADAM, GRADIENT, Operands, Update, UpdateRule
from pathsgd.kernels.whiten import Lines, Outer, WhitenRequest, dense, whiten, whiten_and_keep
from support.kernels import BACKENDS, NATIVE

RULE = UpdateRule(ADAM, betas=(0.9, 0.99), eps=1e-3)
STEPS = 3


def negated(t: Tensor) -> Tensor:
    """A view with torch's negative bit: the numbers are those of memory with the other sign."""
    return torch._neg_view(-t)


def conjugate(t: Tensor) -> Tensor:
    """The imaginary part of a conjugate view."""
    return torch.complex(torch.zeros_like(t), -t).conj().imag


def every_second(t: Tensor) -> Tensor:
    return torch.stack([t, t], -1)[..., 0]


def off_by_one(t: Tensor) -> Tensor:
    """At an address that is not a multiple of what vectors like."""
    return torch.cat([t.reshape(-1)[:1], t.reshape(-1)])[1:].view(t.shape)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "negated view": negated,
    "negated in place": lambda t: torch._neg_view(t.neg_()),
    "part of a conjugate view": conjugate,
    "every second number": every_second,
    "off by one": off_by_one,
    "transposed in memory": lambda t: t.t().contiguous().t(),
}


def operands() -> Operands:
    torch.manual_seed(0)
    shapes = (5, 4), (7, 1)
    p, g, w, m, v = ([torch.rand(s) for s in shapes] for _ in range(5))
    return Operands([torch.nn.Parameter(t) for t in p], g, w, m, v)


def change(o: Operands, family: str, how: Callable[[Tensor], Tensor]) -> None:
    tensors = list(getattr(o, family))
    if family == "gradients":
        tensors[0] = how(tensors[0])
    else:  # the same tensor, as its owner has it, with another memory
        tensors[0].data = how(tensors[0].data)
    setattr(o, family, tensors)


@torch.no_grad()
def steps(
    family: str, how: Callable[[Tensor], Tensor], at: int, fused: bool
) -> tuple[list[Tensor], list[list[float]]]:
    """Parameters and moments after three steps; an operand is changed before step `at`."""
    o = operands()
    gradients, update, squares = o.gradients, None, []
    for step in range(1, STEPS + 1):
        o.gradients = [g + 0.1 * step for g in gradients]
        if step == at:
            change(o, family, how)
        if update is None:
            update = Update(o)
        else:
            update.renew(o.gradients)
        squares.append(update.square_sums())
        if fused:
            update.advance(RULE, -0.1, 0.9)
        else:
            update.moments(RULE)
            update.apply(RULE, -0.1, 0.9)
        update.release()
    return [t.detach().clone() for t in (*o.parameters, *o.first, *o.second)], squares


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("family", ["parameters", "gradients", "whitenings", "first", "second"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_step_reads_numbers_and_not_memory(
    kernel: str, way: str, family: str, at: int, fused: bool
) -> None:
    expected = steps(family, torch.clone, at, fused)
    found = steps(family, WAYS[way], at, fused)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def steps_on_shared_memory(rule: UpdateRule, by: int, at: int) -> list[Tensor]:
    """Three steps; in the one numbered `at` the gradient lies `by` numbers behind the parameter."""
    torch.manual_seed(0)
    memory, shape = torch.rand(602), (30, 20)
    p, other = memory[1:601].view(shape), torch.rand(shape)
    w, m, v = (torch.rand(shape) for _ in range(3))
    o = Operands([p], [other], [w], [m], [v]) if rule is RULE else Operands([p], [other], [w])
    update = Update(o)
    for step in range(1, STEPS + 1):
        update.renew([memory[1 + by : 601 + by].view(shape) if step == at else other])
        if rule is RULE:
            update.advance(rule, -0.1, 0.9)
        else:
            update.apply(rule, -0.1, 0.9)
    return [memory, m, v]


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("by", [-1, 0, 1])
@pytest.mark.parametrize("rule", [RULE, UpdateRule(GRADIENT)], ids=["adam", "gradient"])
def test_a_gradient_in_the_memory_of_a_parameter(
    kernel: str, rule: UpdateRule, by: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch reads the whole gradient before it writes the parameter; so does every backend."""
    found = steps_on_shared_memory(rule, by, at)
    monkeypatch.setattr(native, "load", lambda: BACKENDS["torch"])
    torch.testing.assert_close(found, steps_on_shared_memory(rule, by, at))


class NotByTheKernel(Exception):
    """Instead of torch's way, which reads such tensors at its own risk."""


def refuse(*_: object) -> None:
    raise NotByTheKernel


def emptied(t: Tensor) -> Tensor:
    """As FSDP leaves a tensor between two steps: the shape is there, the memory is not."""
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("family", ["parameters", "gradients", "whitenings", "first", "second"])
@pytest.mark.parametrize("backend", NATIVE)
@torch.no_grad()
def test_memory_that_was_given_away_is_not_touched(
    backend: str, family: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "load", lambda: BACKENDS[backend])
    monkeypatch.setattr("pathsgd.kernels.update._square_sums", refuse)
    o = operands()
    gradients, update = o.gradients, None
    for step in range(1, at + 1):
        o.gradients = list(gradients)
        if step == at:
            change(o, family, emptied)
        if update is None:
            update = Update(o)
        else:
            update.renew(o.gradients)
        if step < at:
            update.square_sums()
    assert update is not None
    with pytest.raises(NotByTheKernel):
        update.square_sums()


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("way", [w for w in WAYS if w != "transposed in memory"])
@pytest.mark.parametrize("operand", ["kappa", "sides", "result"])
@pytest.mark.parametrize("form", ["matrix", "outer"])
def test_a_whitening_reads_numbers_and_not_memory(
    kernel: str, way: str, operand: str, form: str, at: int
) -> None:
    nodes = torch.tensor([1, 2, 3, 4, 5])
    lines = Lines(5, 4, 1, row_out=nodes, column_into=nodes[:4].clone())
    how = WAYS[way]
    call = results = None
    for step in range(1, STEPS + 1):
        torch.manual_seed(step)
        rows, columns = torch.rand(5, 1), torch.rand(1, 4)
        kappa = Outer(rows, columns) if form == "outer" else rows * columns
        sides = torch.rand(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
        expected = dense(
            whiten([WhitenRequest(kappa, lines)], sides, 2.0, torch.float32)[0]
        ).clone()
        if step == at and operand == "kappa":
            kappa = Outer(how(rows), columns) if isinstance(kappa, Outer) else how(kappa)
        if step == at and operand == "sides":
            sides = how(sides[0]), how(sides[1])
        if step == at and operand == "result" and results is not None:
            (result,) = results
            for t in (result.rows, result.columns) if isinstance(result, Outer) else (result,):
                t.data = how(t.data)
        if call is not None and call.serves([kappa], sides):
            assert not call.run(sides, 2.0)[0]
        else:
            results, call, _ = whiten_and_keep(
                [WhitenRequest(kappa, lines)], sides, 2.0, torch.float32
            )
        torch.testing.assert_close(dense(results[0]), expected)


class Net(torch.nn.Module):
    """A plain RNN that is read at the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = torch.nn.RNN(2, 6, nonlinearity="relu"), torch.nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[1][0])


@pytest.mark.parametrize("at", range(1, STEPS + 1))
@pytest.mark.parametrize("way", ["negated view", "negated in place", "every second number"])
@pytest.mark.parametrize("what", ["gradient", "parameter"])
@pytest.mark.parametrize("optimiser", [pathsgd.PathSGD, pathsgd.PathAdam])
def test_an_optimiser_reads_numbers_and_not_memory(
    optimiser: Callable[..., torch.optim.Optimizer], what: str, way: str, at: int
) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.rand(5, 3, 2)
    twin = copy.deepcopy(net)
    for model, how in ((net, torch.clone), (twin, WAYS[way])):
        stepper = optimiser(model, 1e-2, example_inputs=(x,))
        for step in range(1, STEPS + 1):
            stepper.zero_grad()
            model(x).square().sum().backward()
            for p in model.parameters() if step == at else ():
                if what == "gradient":
                    p.grad = how(p.grad)
                else:
                    p.data = how(p.data)
            stepper.step()
    for p, q in zip(net.parameters(), twin.parameters()):
        torch.testing.assert_close(q.resolve_neg(), p)

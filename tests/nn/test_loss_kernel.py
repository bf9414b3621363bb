"""The output loss by the kernels: its numbers, its gradients and who computes when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from pathsgd.kernels import cross_entropy
from pathsgd.nn import linear_cross_entropy
from pathsgd.nn.loss import LinearCrossEntropy

RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def few_classes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small problems reach the kernel with any number of threads."""
    monkeypatch.setattr(cross_entropy, "CLASSES_PER_THREAD", 1)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the kernel is asked."""
    times: list[int] = []
    original = LinearCrossEntropy.apply
    monkeypatch.setattr(
        LinearCrossEntropy, "apply", lambda *arguments: (times.append(1), original(*arguments))[1]
    )
    return times


def problem(
    rows: int,
    inputs: int,
    classes: int,
    dtype: torch.dtype = torch.float64,
    zeros: float = 0.5,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(rows, inputs, dtype=dtype, generator=generator)
    h[torch.rand(rows, inputs, generator=generator) < zeros] = 0
    weight = torch.randn(classes, inputs, dtype=dtype, generator=generator)
    bias = torch.randn(classes, dtype=dtype, generator=generator)
    return h, weight, bias, torch.randint(classes, (rows,), generator=generator)


def results(
    function: Callable[..., Tensor], tensors: list[Tensor | None], *arguments: Any
) -> list[Tensor]:
    """The loss and the gradients of all tensors."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    loss = function(*leaves, *arguments)
    return [loss.detach(), *torch.autograd.grad(loss, [t for t in leaves if t is not None])]


def whole(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    return F.cross_entropy(
        F.linear(h, weight, bias), target, reduction=reduction, ignore_index=ignore_index
    )


def assert_near(found: list[Tensor], expected: list[Tensor], relative: float) -> None:
    for one, other in zip(found, expected, strict=True):
        largest = other.abs().max().item()
        # Rounding errors are those of logits and of probabilities near 1, whatever little the
        # result is.
        torch.testing.assert_close(
            one.double(), other.double(), rtol=0, atol=relative * max(largest, 0.1)
        )


@settings(max_examples=60)
@given(
    rows=st.integers(1, 230),
    inputs=st.sampled_from([1, 2, 7, 16, 33, 107, 109, 230]),
    classes=st.sampled_from([1, 2, 23, 24, 25, 47, 48, 49, 97, 200]),
    zeros=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    chunk=st.integers(1, 240),
    biased=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]),
    ignored=st.booleans(),
    dtype=st.sampled_from(list(RELATIVE)),
)
def test_equals_the_loss_of_whole_logits(
    kernel: str,
    rows: int,
    inputs: int,
    classes: int,
    zeros: float,
    chunk: int,
    biased: bool,
    reduction: str,
    ignored: bool,
    dtype: torch.dtype,
) -> None:
    h, weight, bias, target = problem(rows, inputs, classes, dtype, zeros)
    tensors = [h, weight, bias if biased else None]
    ignore_index = int(target[0]) if ignored and bool((target != target[0]).any()) else -100
    found = results(linear_cross_entropy, tensors, target, reduction, ignore_index, chunk)
    exact = [None if t is None else t.double() for t in tensors]
    expected = results(whole, exact, target, reduction, ignore_index)
    if classes > 1:
        assert_near(found, expected, RELATIVE[dtype])
    else:  # everything is zero but for the rounding of logits
        for one in found:
            torch.testing.assert_close(
                one.double(), torch.zeros_like(one).double(), rtol=0, atol=1e-4
            )


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("size", [1e-30, 1.0, 300.0, 1e4])
def test_logits_of_any_size(size: float, dtype: torch.dtype, kernel: str) -> None:
    h, weight, bias, target = problem(9, 5, 130, dtype)
    tensors = [h * size, weight, bias]
    expected = results(whole, [t.double() for t in tensors], target)
    assert_near(
        results(linear_cross_entropy, tensors, target),
        expected,
        RELATIVE[dtype] * max(1.0, size / 30),
    )


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("place", ["h", "weight", "bias", "all of the bias", "an overflow"])
def test_what_is_not_finite_goes_where_torch_lets_it_go(
    place: str, value: float, kernel: str
) -> None:
    h, weight, bias, target = problem(11, 6, 120)
    h[:, 2] = 0
    if place == "h":
        h[3, 1] = value
    elif place == "weight":
        weight[50, 2] = value
    elif place == "bias":
        bias[7] = value
    elif place == "all of the bias":
        bias[:] = value
    else:
        h[4] = weight[9] = 1e200
    assert_torchs_loss(h, weight, bias, target, "sum")


# Torch's chunked loop multiplies an ignored row's loss by zero and divides by the number of rows
# though it be none;
# only the kernels do what F.cross_entropy does.


@pytest.mark.usefixtures("native_kernel")
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_an_ignored_row_that_is_not_finite(value: float) -> None:
    h, weight, bias, target = problem(11, 6, 120)
    h[3, 1], target[3] = value, -100
    assert_torchs_loss(h, weight, bias, target, "sum")


@pytest.mark.usefixtures("native_kernel")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_where_every_row_is_ignored(reduction: str) -> None:
    h, weight, bias, _ = problem(4, 3, 5)
    assert_torchs_loss(h, weight, bias, torch.full((4,), -100), reduction)


def assert_torchs_loss(
    h: Tensor, weight: Tensor, bias: Tensor, target: Tensor, reduction: str
) -> None:
    found = results(linear_cross_entropy, [h, weight, bias], target, reduction)
    expected = results(whole, [h, weight, bias], target, reduction)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_gradients_by_differences(kernel: str) -> None:
    h, weight, bias, target = problem(4, 3, 6)
    leaves = [t.requires_grad_() for t in (h, weight, bias)]
    torch.autograd.gradcheck(lambda *tensors: linear_cross_entropy(*tensors, target), leaves)


@pytest.mark.usefixtures("two_threads")
def test_threads_change_nothing_but_rounding(kernel: str) -> None:
    h, weight, bias, target = problem(70, 40, 700, torch.float32)
    found = results(linear_cross_entropy, [h, weight, bias], target, "mean", -100, 30)
    again = results(linear_cross_entropy, [h, weight, bias], target, "mean", -100, 30)
    assert kernel == "torch" or all(torch.equal(one, other) for one, other in zip(found, again))
    assert_near(found, results(whole, [t.double() for t in (h, weight, bias)], target), 1e-5)


@pytest.mark.parametrize("needed", range(8))
def test_only_the_gradients_that_are_needed(needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = cross_entropy.cross_entropy
    monkeypatch.setattr(
        "pathsgd.nn.loss.cross_entropy", lambda *a: (asked.append(a[-1]), original(*a))[1]
    )
    *tensors, target = problem(6, 4, 9)
    for i, tensor in enumerate(tensors):
        tensor.requires_grad_(bool(needed >> i & 1))
    loss = linear_cross_entropy(*tensors, target)
    wanted = tuple(t.requires_grad for t in tensors)
    assert asked == [wanted] and loss.requires_grad == any(wanted)
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(*tensors, target), loss)
    assert asked[1:] == [(False, False, False)]


def test_gradients_belong_to_who_gets_them(applied: list[int]) -> None:
    h, weight, bias, target = problem(6, 4, 9)
    expected = results(whole, [h, weight, bias], target)[1:]
    leaves = [t.requires_grad_() for t in (h, weight, bias)]
    loss = linear_cross_entropy(h, weight, bias, target)
    loss.backward(retain_graph=True)
    loss.backward(torch.tensor(-3.0, dtype=torch.float64), retain_graph=True)
    torch.testing.assert_close([t.grad for t in leaves], [-2 * g for g in expected])
    batch = torch.tensor([1.0, 2.0], dtype=torch.float64)
    batched = torch.autograd.grad(loss, leaves, batch, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(list(batched), [torch.stack([g, 2 * g]) for g in expected])
    torch.testing.assert_close(list(torch.autograd.grad(loss, leaves)), expected)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert len(applied) == 1


def test_second_derivatives(applied: list[int]) -> None:
    h, weight, bias, target = problem(4, 3, 6)
    leaves = [t.requires_grad_() for t in (h, weight, bias)]
    torch.autograd.gradgradcheck(
        lambda *tensors: linear_cross_entropy(*tensors, target, "mean", int(target[0])), leaves
    )
    weight.requires_grad_(False)
    square = (
        torch.autograd.grad(linear_cross_entropy(h, weight, None, target), h, create_graph=True)[0]
        .square()
        .sum()
    )
    other = (
        torch.autograd.grad(whole(h, weight, None, target), h, create_graph=True)[0].square().sum()
    )
    torch.testing.assert_close(torch.autograd.grad(square, h), torch.autograd.grad(other, h))
    assert applied


def test_tensors_that_are_not_contiguous(kernel: str) -> None:
    h, weight, bias, target = problem(6, 8, 10)
    pieces = [h[:, ::2], weight[:, ::2], bias.expand(2, 10).t()[:, 0]]
    spread = target.repeat_interleave(2)[::2]
    loss = linear_cross_entropy(*pieces, spread)
    torch.testing.assert_close(loss, whole(*pieces, target))


@pytest.mark.parametrize("wrong", [-1, 9, 2**40])
def test_a_class_that_does_not_exist(wrong: int, kernel: str) -> None:
    h, weight, bias, target = problem(6, 4, 9)
    target[2] = wrong
    with pytest.raises((IndexError, RuntimeError), match="out of bounds") as caught:
        linear_cross_entropy(h, weight, bias, target)
    assert kernel == "torch" or str(caught.value) == f"Target {wrong} is out of bounds."


@pytest.mark.parametrize(
    "why", ["none", "bfloat16", "subclass", "autocast", "meta", "int32", "shape", "empty"]
)
def test_what_is_torchs(why: str, applied: list[int]) -> None:
    h, weight, bias, target = problem(6, 4, 9, torch.float32)
    if why == "none":
        assert linear_cross_entropy(h, weight, bias, target, "none").shape == (6,)
    elif why == "bfloat16":
        linear_cross_entropy(h.bfloat16(), weight.bfloat16(), bias.bfloat16(), target)
    elif why == "subclass":
        linear_cross_entropy(h.as_subclass(type("Tagged", (Tensor,), {})), weight, bias, target)
    elif why == "autocast":
        with torch.autocast("cpu"):
            linear_cross_entropy(h, weight, bias, target)
    elif why == "meta":
        assert linear_cross_entropy(
            h.to("meta"), weight.to("meta"), bias.to("meta"), target.to("meta")
        ).is_meta
    elif why == "int32":
        with pytest.raises((RuntimeError, TypeError)):
            linear_cross_entropy(h, weight, bias, target.to(torch.int32))
    elif why == "shape":
        with pytest.raises((RuntimeError, ValueError)):
            linear_cross_entropy(h, weight[:, :3], bias, target)
    else:
        linear_cross_entropy(h[:0], weight, bias, target[:0], "sum")
    assert not applied


def test_transforms_get_torchs(applied: list[int]) -> None:
    h, weight, bias, target = problem(6, 4, 9)
    expected = results(whole, [h, weight, bias], target)[1]
    torch.testing.assert_close(
        grad(lambda x: linear_cross_entropy(x, weight, bias, target))(h), expected
    )
    losses = vmap(lambda x: linear_cross_entropy(x, weight, bias, target, "sum"))(
        torch.stack([h, h])
    )
    torch.testing.assert_close(losses, whole(h, weight, bias, target, "sum", -100).expand(2))
    assert not applied


@pytest.mark.usefixtures("two_threads")
def test_few_classes_are_shared_out_by_torch(
    applied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CLASSES_PER_THREAD", 5)
    linear_cross_entropy(*problem(6, 4, 9))
    assert not applied

"""The chunked output loss against F.cross_entropy on whole logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pathsgd.nn import linear_cross_entropy


def whole(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    reduction: str,
    ignore_index: int,
) -> Tensor:
    logits = F.linear(x, weight, bias).flatten(0, -2)
    loss = F.cross_entropy(logits, target.flatten(), reduction=reduction, ignore_index=ignore_index)
    return loss.view(target.shape) if reduction == "none" else loss


@settings(max_examples=60)
@given(
    rows=st.lists(st.integers(1, 7), min_size=1, max_size=2),
    classes=st.integers(2, 30),
    inputs=st.integers(1, 9),
    chunk=st.integers(1, 60),
    biased=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    ignored=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equals_the_loss_of_whole_logits(
    rows: list[int],
    classes: int,
    inputs: int,
    chunk: int,
    biased: bool,
    reduction: str,
    ignored: bool,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(*rows, inputs, dtype=dtype, requires_grad=True)
    weight = torch.randn(classes, inputs, dtype=dtype, requires_grad=True)
    bias = torch.randn(classes, dtype=dtype, requires_grad=True) if biased else None
    target = torch.randint(1 if ignored else 0, classes, rows)
    if ignored and target.numel() > 1:
        target.view(-1)[0] = 0
    ignore_index = 0 if ignored else -100
    ours = linear_cross_entropy(x, weight, bias, target, reduction, ignore_index, chunk)
    theirs = whole(x, weight, bias, target, reduction, ignore_index)
    torch.testing.assert_close(ours, theirs)
    leaves = [t for t in (x, weight, bias) if t is not None]
    scale = torch.randn_like(ours)
    found = [torch.autograd.grad(loss, leaves, scale, retain_graph=True) for loss in (ours, theirs)]
    torch.testing.assert_close(*found)
    again = torch.autograd.grad(ours, leaves, scale)
    torch.testing.assert_close(again, found[0])


own_of_torch = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"),
    reason="this torch has no linear_cross_entropy of its own",
)


class LargestTensor(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


@own_of_torch
def test_the_logits_are_never_whole() -> None:
    x, target = torch.randn(640, 8, requires_grad=True), torch.randint(500, (640,))
    weight, bias = torch.randn(500, 8, requires_grad=True), torch.zeros(500, requires_grad=True)
    with LargestTensor() as mode:
        linear_cross_entropy(x, weight, bias, target, chunk=64).backward()
    assert mode.size <= 64 * 500


@own_of_torch
def test_a_function_mode_sees_the_loss() -> None:
    seen = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Recorder():
        linear_cross_entropy(torch.rand(3, 2), torch.rand(4, 2), None, torch.tensor([0, 1, 3]))
    assert F.linear_cross_entropy in seen


@own_of_torch
def test_without_torchs_own_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        torch.rand(3, 5, 2),
        torch.rand(4, 2),
        torch.rand(4),
        torch.randint(4, (3, 5)),
        "none",
    )
    expected = linear_cross_entropy(*arguments)
    monkeypatch.delattr(F, "linear_cross_entropy")
    torch.testing.assert_close(linear_cross_entropy(*arguments), expected)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="one class for each row"):
        linear_cross_entropy(torch.rand(3, 2), torch.rand(4, 2), None, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="chunk"):
        linear_cross_entropy(
            torch.rand(3, 2), torch.rand(4, 2), None, torch.tensor([0, 1, 2]), chunk=0
        )
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        linear_cross_entropy(torch.rand(2, 2), torch.rand(4, 2), None, torch.tensor([0, 9]))

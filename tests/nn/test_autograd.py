"""The layer as a node of autograd's graph.

Its derivatives, their derivatives, what it keeps and what it refuses.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.gradcheck import gradcheck, gradgradcheck

import pathsgd.nn
from pathsgd.kernels.layout import Layout
from pathsgd.nn.layer import ReluLayer


def tensors(
    directions: int = 1, biased: bool = True, inputs: int = 3, rows: tuple[int, ...] = (4, 2)
) -> list[Tensor]:
    """x, h0 and weights of a small layer with four units."""
    torch.manual_seed(0)
    shapes = [(4, inputs), (4, 4), (4,), (4,)][: 4 if biased else 2] * directions
    batch = rows[-1] if len(rows) == 2 else 3
    every = [(*rows, inputs), (directions, batch, 4), *shapes]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in every]


def layer(layout: Layout = Layout(4, 2), biased: bool = True) -> Callable[..., Any]:  # noqa: B008
    return lambda x, h0, *weights: ReluLayer.apply(x, h0, layout, biased, *weights)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("inputs", [3, 18])
def test_first_derivatives(kernel: str, directions: int, inputs: int) -> None:
    assert gradcheck(layer(), tensors(directions, inputs=inputs))


def test_derivatives_of_a_packed_layer(kernel: str) -> None:
    packed = layer(Layout.packed(torch.tensor([3, 3, 1, 1])), biased=False)
    assert gradcheck(packed, tensors(2, biased=False, rows=(8,)))
    assert gradgradcheck(packed, tensors(2, biased=False, rows=(8,)))


def test_second_derivatives(kernel: str) -> None:
    assert gradgradcheck(layer(), tensors())


def test_derivatives_of_tied_directions(kernel: str) -> None:
    """Each direction's share of a weight used in both is counted once."""
    x, h0, *weights = tensors(2)
    tied = lambda x, h0, *weights: layer()(x, h0, *weights, *weights)  # noqa: E731
    assert gradcheck(tied, [x, h0, *weights[:4]])
    assert gradgradcheck(tied, [x, h0, *weights[:4]])


def test_gradient_penalty_equals_torchs(kernel: str) -> None:
    theirs = torch.nn.RNN(2, 7, num_layers=2, nonlinearity="relu", dtype=torch.float64)
    ours = pathsgd.nn.RNN(2, 7, num_layers=2, nonlinearity="relu", dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    found = []
    for module in (ours, theirs):
        (gradient,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), list(module.parameters())))
    torch.testing.assert_close(*found)


def test_batches_of_gradients(kernel: str) -> None:
    """Old and new vmap over the backward pass, against one gradient after the other."""
    module = pathsgd.nn.RNN(2, 3, nonlinearity="relu", dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    output, _ = module(x)
    rows = torch.eye(output.numel(), dtype=torch.float64).view(-1, *output.shape)
    gradient = lambda row: torch.autograd.grad(output, x, row, retain_graph=True)[0]  # noqa: E731
    one_by_one = torch.stack([gradient(row) for row in rows])
    (old,) = torch.autograd.grad(output, x, rows, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(old, one_by_one)
    torch.testing.assert_close(torch.func.vmap(gradient)(rows), one_by_one)


def test_only_wanted_gradients_are_returned(kernel: str) -> None:
    module = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
    module.weight_hh_l0.requires_grad_(False)
    module.bias_ih_l0.requires_grad_(False)
    module(torch.randn(3, 2, 2))[0].sum().backward()
    assert module.weight_hh_l0.grad is None and module.bias_ih_l0.grad is None
    assert module.weight_ih_l0.grad is not None and module.bias_hh_l0.grad is not None


def test_the_two_biases_do_not_share_memory(kernel: str) -> None:
    module = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
    module(torch.rand(3, 2, 2))[0].sum().backward()
    before = module.bias_hh_l0.grad.clone()
    module.bias_ih_l0.grad.zero_()
    assert torch.equal(module.bias_hh_l0.grad, before)


def test_a_loss_on_the_last_state_builds_no_gradient_over_time(kernel: str) -> None:
    """The backward pass gets nothing for the states of every step.

    No (T, B, H) tensor of zeros exists.
    """
    seen: list[Tensor | None] = []

    class Watched(ReluLayer):
        @staticmethod
        def backward(ctx: Any, d_states: Tensor | None, d_last: Tensor | None) -> Any:
            seen.extend([d_states, d_last])
            return ReluLayer.backward(ctx, d_states, d_last)

    x, h0, *weights = tensors()
    _, last = Watched.apply(x, h0, Layout(4, 2), True, *weights)
    last.sum().backward()
    assert seen[0] is None and seen[1] is not None


def test_an_output_changed_in_place_is_refused(kernel: str) -> None:
    """The states are kept for the backward pass.

    A changed one must not give silently wrong gradients.
    """
    output, _ = pathsgd.nn.RNN(2, 5, nonlinearity="relu")(torch.rand(3, 2, 2))
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_h_n_may_be_changed_in_place(kernel: str) -> None:
    module = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
    x = torch.rand(3, 2, 2)
    expected = torch.autograd.grad(module(x)[1].sum() * 2, list(module.parameters()))
    _, h_n = module(x)
    torch.testing.assert_close(
        torch.autograd.grad(h_n.mul_(2).sum(), list(module.parameters())), expected
    )


def test_gradient_checkpointing(kernel: str) -> None:
    module = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
    x = torch.rand(3, 2, 2, requires_grad=True)
    run = lambda x: module(x)[0].sum()  # noqa: E731
    expected = torch.autograd.grad(run(x), [x, *module.parameters()])
    checkpointed = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
    torch.testing.assert_close(
        torch.autograd.grad(checkpointed, [x, *module.parameters()]), expected
    )


def test_nothing_is_kept_after_the_backward_pass(kernel: str) -> None:
    """No reference cycle holds the (T, B, H) states until the garbage collector comes."""
    module = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
    output, h_n = module(torch.rand(3, 2, 2))
    states = weakref.ref(output)
    h_n.sum().backward()
    gc.disable()
    try:
        del output, h_n
        assert states() is None
    finally:
        gc.enable()

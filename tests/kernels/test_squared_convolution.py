"""A convolution with a squared kernel against torch's in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.squared_convolution import (
    Sliding,
    squared_convolution,
    squared_convolution_backward,
)

RIGHT = {torch.float32: {"rtol": 5e-6, "atol": 0.0}, torch.float64: {"rtol": 1e-13, "atol": 0.0}}
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def expected(weight: Tensor, x: Tensor, y_bar: Tensor, sliding: Sliding) -> list[Tensor]:
    q, wide = weight.double().square().requires_grad_(), x.double().requires_grad_()
    y = F.conv2d(wide, q, None, sliding.stride, sliding.padding, sliding.dilation)
    return [y.detach(), *torch.autograd.grad(y, [wide, q], y_bar.double())]


def check(weight: Tensor, x: Tensor, sliding: Sliding) -> None:
    y, largest, least = squared_convolution(weight, x, sliding)
    y_bar = torch.rand_like(y) + 0.1
    found = [y, *squared_convolution_backward(weight, x, y_bar, sliding)]
    for one, other in zip(found, expected(weight, x, y_bar, sliding)):
        assert one is not None and one.dtype is x.dtype
        torch.testing.assert_close(one.double(), other, **RIGHT[x.dtype])
    squares = weight.square()
    assert largest == float(squares.max()) and least == float(squares[weight != 0].min())
    x_bar, none = squared_convolution_backward(weight, x, y_bar, sliding, wanted=False)
    none_too, kappa = squared_convolution_backward(weight, x, y_bar, sliding, into=False)
    assert none is None and none_too is None
    assert torch.equal(x_bar, found[1]) and torch.equal(kappa, found[2])  # type: ignore[arg-type]


@settings(max_examples=60)
@given(
    channels=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    more=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    stride=pairs,
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    dilation=pairs,
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10**6),
)
def test_every_way_to_slide(
    kernel: str, channels, size, more, stride, padding, dilation, dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    reach = [d * (k - 1) + 1 for k, d in zip(size, dilation)]
    image = [max(1, r - 2 * p) + m for r, p, m in zip(reach, padding, more)]
    x = torch.rand(channels[0], *image, dtype=dtype)
    weight = torch.randn(channels[1], channels[0], *size, dtype=dtype)
    check(weight, x, Sliding(stride, padding, dilation))


@pytest.mark.parametrize(("inputs", "outputs", "width"), [(64, 70, 4), (30, 200, 7), (3, 5, 33)])
def test_more_than_one_piece(
    kernel: str, two_threads: None, inputs: int, outputs: int, width: int
) -> None:
    torch.manual_seed(0)
    check(
        torch.randn(outputs, inputs, 3, 3),
        torch.rand(inputs, width, width + 1),
        Sliding((1, 1), (1, 1)),
    )


def test_zeros(kernel: str) -> None:
    weight, x = torch.zeros(2, 3, 1, 1), torch.rand(3, 2, 2)
    y, largest, least = squared_convolution(weight, x, Sliding())
    assert not y.any() and (largest, least) == (0.0, math.inf)
    weight[1, 1], weight[0, 0] = 1e-30, 2.0  # a square that vanishes is seen
    assert squared_convolution(weight, x, Sliding())[2] < torch.finfo(torch.float32).tiny


def test_memory_that_is_laid_out_otherwise(kernel: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 3, 4, 6).permute(3, 2, 0, 1)  # (6, 4, 3, 3)
    check(weight, torch.rand(5, 6, 4).permute(2, 0, 1), Sliding((1, 1), (1, 1)))


@pytest.mark.parametrize(
    ("x", "sliding"),
    [
        ((2, 3, 3), Sliding()),
        ((3, 1, 1), Sliding()),
        ((3, 4, 4), Sliding((0, 1))),
        ((3, 4, 4), Sliding((1, 1), (-1, 0))),
    ],
)
def test_what_does_not_fit_is_refused(kernel: str, x: tuple[int, ...], sliding: Sliding) -> None:
    with pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):
        squared_convolution(torch.rand(2, 3, 2, 2), torch.rand(x), sliding)

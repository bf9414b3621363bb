"""Kernels of convolutions in float32 against convolutions in float64, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.arithmetic.scaled import Scaled, no_scale
from pathsgd.kernels.squared_convolution import Sliding
from pathsgd.network import unsquared as kernels
from pathsgd.network.unsquared import UnsquaredKernel

RIGHT = {"rtol": 2e-5, "atol": 0.0}
Case = tuple[
    Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...], int | None, Sliding | None
]
"""The product, the shapes of x and W, the result's dimension for rows of W, and W's movement."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    spatial, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))
    ins, outs, size = (
        groups * draw(st.integers(1, 4)),
        groups * draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
    )
    width = draw(st.integers(2 * size, 8))
    rows = draw(st.sampled_from([(), (1,), (3,)]))
    x = (*rows, ins, *[width] * spatial)
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "padding": size - 1,
    }
    if draw(st.booleans()):
        op = getattr(F, f"conv_transpose{spatial}d")
        return (
            lambda m, w: op(m, w, **options),
            x,
            (ins, outs // groups, *[size] * spatial),
            None,
            None,
        )
    if stride == 1 and draw(st.booleans()):
        options["padding"] = "same"
    op = getattr(F, f"conv{spatial}d")
    sliding = None
    if spatial == 2 and groups == 1 and options["padding"] != "same":
        sliding = Sliding((stride, stride), (size - 1, size - 1), (dilation, dilation))
    return (
        lambda m, w: op(m, w, **options),
        x,
        (outs, ins // groups, *[size] * spatial),
        -1 - spatial,
        sliding,
    )


def numbers(shape: tuple[int, ...], low: float, high: float, zeros: bool) -> Tensor:
    values = 10.0 ** (torch.rand(shape, dtype=torch.float64) * (high - low) + low)
    return torch.where((torch.rand(shape) < 0.3) & zeros, 0.0, values)


def both(case: Case, x: Tensor, weight: Tensor, y_bar: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """y, x-bar, kappa1 and the mass of rows: by `UnsquaredKernel`, and by torch in float64."""
    product, _, _, rows, sliding = case
    kernel, entered = UnsquaredKernel(weight), x.clone().requires_grad_()
    y = kernel.of(Scaled(entered, no_scale()), product, rows, sliding)
    x_bar, _ = torch.autograd.grad(y.mantissa, [entered, kernel.anchor], y_bar * y.log_scale.exp())
    found = [y.mantissa.detach() * y.log_scale.exp(), x_bar, kernel.kappa1().double()]
    q, wide = weight.double().square().requires_grad_(), x.clone().requires_grad_()
    through = product(wide, q)
    expected = [through.detach(), *torch.autograd.grad(through, [wide, q], y_bar)]
    mass = kernel.mass()
    assert (mass is None) == (rows is None)
    if mass is not None:
        found.append(mass)
        expected.append((q.detach() * expected[2]).flatten(1).sum(1))
    return found, expected


@settings(max_examples=150)
@given(
    case=cases(),
    ranges=st.tuples(*[st.tuples(st.integers(-30, 8), st.integers(0, 20))] * 3),
    zeros=st.booleans(),
    seed=st.integers(0, 10**6),
    ours=st.booleans(),
)
def test_every_entry_is_right(
    case: Case, ranges: tuple[tuple[int, int], ...], zeros: bool, seed: int, ours: bool
) -> None:
    """By torch's convolutions and by our own, which takes one image."""
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_WEIGHTS", 0 if ours else 1 << 14)
        check_every_entry(case, ranges, zeros)


def check_every_entry(case: Case, ranges: tuple[tuple[int, int], ...], zeros: bool) -> None:
    (x_low, x_wide), (w_low, w_wide), (y_low, y_wide) = ranges
    x = numbers(case[1], x_low, x_low + x_wide, zeros)
    weight = numbers(case[2], max(w_low, -20), max(w_low, -20) + w_wide, zeros).float()
    y_bar = numbers(tuple(case[0](x, weight.double()).shape), y_low, y_low + y_wide, zeros)
    for found, expected in zip(*both(case, x, weight, y_bar)):
        torch.testing.assert_close(found, expected, **RIGHT)


CONV: Case = (lambda m, w: F.conv2d(m, w, None, 1, 1), (1, 3, 5, 5), (4, 3, 3, 3), -3, None)


def routes(case: Case, x: Tensor, weight: Tensor, y_bar: Tensor) -> list[torch.dtype]:
    """The dtypes that convolutions are done in; the results are checked."""
    dtypes: list[torch.dtype] = []

    def product(m: Tensor, w: Tensor) -> Tensor:
        dtypes.append(m.dtype)
        return case[0](m, w)

    kernel, entered = UnsquaredKernel(weight), x.clone().requires_grad_()
    y = kernel.of(Scaled(entered, no_scale()), product, case[3])
    torch.autograd.grad(y.mantissa, [entered, kernel.anchor], y_bar)
    for found, expected in zip(*both(case, x, weight, y_bar)):
        torch.testing.assert_close(found, expected, **RIGHT)
    return dtypes


def ordinary() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        torch.rand(CONV[1], dtype=torch.float64) + 0.1,
        torch.randn(CONV[2]),
        torch.rand(1, 4, 5, 5).double() + 0.1,
    )


def test_ordinary_numbers_are_short() -> None:
    assert routes(CONV, *ordinary()) == [torch.float32]


def test_zeros_are_ordinary() -> None:
    x, weight, y_bar = ordinary()
    x[:, 1], weight[2], y_bar[:, 3] = 0, 0, 0
    assert routes(CONV, x, weight, y_bar) == [torch.float32]


def test_a_weight_that_vanishes_beside_others_costs_nothing() -> None:
    x, weight, y_bar = ordinary()
    weight[0, 0, 0, 0] = 1e-25
    assert routes(CONV, x, weight, y_bar) == [torch.float32]


def test_a_row_that_vanishes_is_measured_in_float64() -> None:
    x, weight, y_bar = ordinary()
    weight[0] *= 1e-20
    assert routes(CONV, x, weight, y_bar) == [torch.float32, torch.float64]


def test_a_derivative_that_vanishes_is_measured_in_float64() -> None:
    x, weight, y_bar = ordinary()
    y_bar[0, 0] *= 1e-60
    assert routes(CONV, x, weight, y_bar) == [torch.float32, torch.float64]


def test_weights_that_are_too_large_are_measured_in_float64() -> None:
    x, weight, y_bar = ordinary()
    assert routes(CONV, x, 1e20 * weight, y_bar) == [torch.float32, torch.float64]


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "shorter", [lambda: torch.autocast("cpu"), lambda: matmul_precision("medium")]
)
def test_where_torch_may_shorten_float32_it_is_not_used(shorter: Callable[[], Any]) -> None:
    with shorter():
        assert routes(CONV, *ordinary()) == [torch.float64]


def test_kappa_is_zero_without_an_output_and_not_made_unless_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, weight, y_bar = ordinary()
    assert not UnsquaredKernel(weight).kappa1().any()
    kernel, entered = UnsquaredKernel(weight, wanted=False), x.clone().requires_grad_()
    asked: list[bool] = []
    original = kernels._Passage.back
    monkeypatch.setattr(
        kernels._Passage, "back", lambda s, *a: (asked.append(a[2]), original(s, *a))[1]
    )
    torch.autograd.grad(
        kernel.of(Scaled(entered, no_scale()), CONV[0], -3).mantissa, entered, y_bar
    )
    assert asked == [False] and not kernel.kappa1().any()

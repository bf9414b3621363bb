"""Squares, numbers made shorter, lengths of rows and means of logarithms, against plain Python."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.mean_log import mean_log
from pathsgd.kernels.narrow import narrow
from pathsgd.kernels.row_lengths import row_lengths
from pathsgd.kernels.squares import squares

TINY = torch.finfo(torch.float32).tiny
quick = settings(max_examples=40)
magnitudes = st.one_of(st.just(0.0), st.floats(-12, 12).map(lambda e: 10.0**e))


def rounded(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def drawn(count: int, low: float, high: float, zeros: bool) -> Tensor:
    exponents = torch.rand(count, dtype=torch.float64) * (high - low) + low
    return torch.where((torch.rand(count) < 0.2) & zeros, 0.0, 10.0**exponents)


@quick
@given(
    values=st.lists(magnitudes, max_size=70), dtype=st.sampled_from([torch.float32, torch.float64])
)
def test_squares(kernel: str, values: list[float], dtype: torch.dtype) -> None:
    w = (
        torch.tensor(values, dtype=dtype)
        * torch.tensor([1, -1], dtype=dtype).repeat(len(values))[: len(values)]
    )
    q, largest, least = squares(w)
    expected = [float(v) ** 2 for v in w.tolist()]
    torch.testing.assert_close(
        q.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )
    assert largest == pytest.approx(max(expected, default=0.0), rel=1e-6)
    assert least == pytest.approx(min((v for v in expected if v), default=math.inf), rel=1e-6)


def test_a_square_that_vanishes_is_seen(kernel: str) -> None:
    assert squares(torch.tensor([0.0, 1e-30, 2.0]))[2] < TINY
    assert squares(torch.tensor([0.0, 3.0, 2.0]))[2] == 4.0


def test_squares_of_a_transposed_matrix_on_two_threads(kernel: str, two_threads: None) -> None:
    w = torch.randn(301, 700).t()
    q, largest, least = squares(w)
    torch.testing.assert_close(q, w * w)
    assert (largest, least) == (float(q.max()), float(q.min()))


@quick
@given(
    count=st.integers(0, 70),
    low=st.integers(-200, 200),
    zeros=st.booleans(),
    seed=st.integers(0, 99),
)
def test_narrow(kernel: str, count: int, low: int, zeros: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x = drawn(count, low, low + 5, zeros)
    short, factor, largest, least = narrow(x)
    entries = x.tolist()
    assert short.dtype is torch.float32 and largest == max(entries, default=0.0)
    assert least == min((v for v in entries if v > 0), default=math.inf)
    assert math.frexp(factor)[0] == 0.5  # a power of two
    assert short.tolist() == [rounded(v * factor) for v in entries]
    assert largest == 0 or 0.5 <= largest * factor < 1
    given_factor, used, *_ = narrow(x, 0.25 * factor)
    assert used == 0.25 * factor and given_factor.tolist() == [rounded(v * used) for v in entries]


@pytest.mark.parametrize("worst", [math.inf, 1e-310, 1e308])
def test_narrow_at_the_ends_of_the_range(kernel: str, worst: float) -> None:
    short, factor, largest, _ = narrow(torch.tensor([0.0, worst], dtype=torch.float64))
    assert largest in (worst, 0.0) and 0 < factor < math.inf and 1 / factor < math.inf  # 0: flushed
    assert not short.isnan().any()


@quick
@given(rows=st.integers(0, 9),
       columns=st.one_of(st.integers(0, 40), st.sampled_from([511, 512, 1030])),
       dtype=st.sampled_from([torch.float32, torch.float64]), zeros=st.booleans())  # fmt: skip
def test_row_lengths(kernel: str, rows: int, columns: int, dtype: torch.dtype, zeros: bool) -> None:
    torch.manual_seed(rows + columns)
    p, w = torch.randn(rows, columns, 1).to(dtype), drawn(rows * columns, -3, 3, zeros).to(dtype)
    w = w.reshape(p.shape)
    pairs = [zip(a, b) for a, b in zip(p.flatten(1).tolist(), w.flatten(1).tolist())]
    expected = [math.fsum((a / b) ** 2 for a, b in row if b) for row in pairs]
    found = row_lengths(p, w)
    assert found.dtype is torch.float64 and found.tolist() == pytest.approx(expected, rel=1e-6)


def test_row_lengths_of_a_metric_that_is_the_same_everywhere(kernel: str) -> None:
    p = torch.randn(3, 4)
    torch.testing.assert_close(
        row_lengths(p, torch.full((1, 1), 2.0)), p.double().square().sum(1) / 4
    )


@quick
@given(
    count=st.one_of(st.integers(1, 40), st.sampled_from([7999, 8000, 8001, 20003])),
    low=st.integers(-37, 30),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_mean_log(kernel: str, count: int, low: int, dtype: torch.dtype) -> None:
    torch.manual_seed(count)
    x = drawn(count, low, low + 7, zeros=False).to(dtype)
    expected = math.fsum(math.log(v) for v in x.tolist()) / count
    assert mean_log(x) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("odd", [0.0, math.inf, -1.0, math.nan, 5e-324])
def test_mean_log_of_odd_numbers(kernel: str, odd: float) -> None:
    x = torch.ones(9000, dtype=torch.float64)
    x[8999] = odd
    found = mean_log(x)
    if odd == 5e-324:  # a kernel may flush it
        assert found < 0
    elif odd == 0 or odd == math.inf:
        assert found == (-math.inf if odd == 0 else math.inf)
    else:
        assert math.isnan(found)


def test_mean_log_on_two_threads_and_of_nothing(kernel: str, two_threads: None) -> None:
    x = torch.rand(300_001) + 0.1
    assert mean_log(x) == pytest.approx(float(x.double().log().mean()), rel=1e-12)
    assert math.isnan(mean_log(torch.zeros(0)))

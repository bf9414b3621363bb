"""The mean logarithm that the kernel gives to whitenings, against plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pathsgd.kernels.whiten import Lines, Outer, WhitenRequest, dense, whiten, whiten_and_keep


def mean_log(values: torch.Tensor) -> float:
    numbers = values.reshape(-1).tolist()
    return math.fsum(math.log(v) for v in numbers) / len(numbers)


def narrowed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.clamp(max=torch.finfo(dtype).max).to(dtype).double()


@settings(max_examples=60)
@given(
    rows=st.sampled_from([1, 2, 7, 40]),
    columns=st.sampled_from([1, 3, 8, 65, 300]),
    form=st.sampled_from(["matrix", "rows", "columns", "outer"]),
    spread=st.sampled_from([1.0, 30.0]),
    size=st.floats(-20, 20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**20),
)
def test_one_factor_gives_the_size(
    kernel: str,
    rows: int,
    columns: int,
    form: str,
    spread: float,
    size: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """w = 1/sqrt(kappa), times the one factor that takes its mean logarithm to `size`.

    The mean is that of w in float64. Where float32 ends, the product is written as the largest
    number of float32, or as 0 below the smallest normal one; an outer product is written out as a
    matrix, without a size, where an entry is larger than that or one of its factors spans more than
    1e30. In float32 the logarithm of the factor is rounded to a millionth.
    """
    torch.manual_seed(seed)
    high, wide = ((spread * torch.randn(n, dtype=torch.float64)).exp() for n in (rows, columns))
    high, wide = high[:, None].contiguous(), wide[None, :].contiguous()
    forms: dict[str, torch.Tensor | Outer] = {
        "matrix": high * wide,
        "rows": high,
        "columns": wide,
        "outer": Outer(high, wide),
    }
    kappa = forms[form]
    exact = dense(kappa).rsqrt()
    close = {"rtol": 1e-5 if dtype is torch.float32 else 1e-12, "atol": torch.finfo(dtype).tiny}
    wanted = [WhitenRequest(kappa, Lines(rows, columns))]
    results, call, sized = whiten_and_keep(wanted, None, 1.0, dtype, [size])
    found = dense(results[0]).double()
    if call is None:
        assert not sized
        torch.testing.assert_close(found, narrowed(exact, dtype), **close)
        return
    assert sized == {0}
    expected = exact * math.exp(size - mean_log(exact))
    torch.testing.assert_close(found, narrowed(expected, dtype), **close)
    if call.serves([kappa], None):  # not so where it was written out
        assert call.run(None, 1.0)[1] == set()  # once more without a size
        found = dense(results[0]).double()
        torch.testing.assert_close(found, narrowed(exact, dtype), **close)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
@pytest.mark.parametrize("columns", [3, 4000])
def test_without_a_mean_there_is_no_size(kernel: str, value: float, columns: int) -> None:
    kappa = torch.rand(2, columns, dtype=torch.float64) + 0.5
    kappa[1, columns // 2] = value
    plain = whiten([WhitenRequest(kappa, Lines(2, columns))], None, 1.0, torch.float32)[0].clone()  # type: ignore[union-attr]
    results, _, sized = whiten_and_keep(
        [WhitenRequest(kappa, Lines(2, columns))], None, 1.0, torch.float32, [0.5]
    )
    assert not sized and torch.equal(dense(results[0]), plain)

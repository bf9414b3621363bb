"""Scaled arithmetic is ordinary arithmetic, whatever the scales."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.arithmetic import scaled
from pathsgd.arithmetic.scaled import Scaled
from pathsgd.network.rules.base import contraction

DOUBLE = torch.float64
SHAPE = (2, 3)


@st.composite
def values(draw: st.DrawFn, shape: tuple[int, ...] = SHAPE) -> Scaled:
    """Mantissas with zeros among them, scales of every admitted shape, up to e^40 apart."""
    count = math.prod(shape)
    mantissa = draw(
        st.lists(st.one_of(st.just(0.0), st.floats(0.1, 10)), min_size=count, max_size=count)
    )
    along = [(), (0,), (len(shape) - 1,), range(len(shape))]
    scale_shape = draw(
        st.sampled_from(
            [(), *(tuple(1 if k in ones else n for k, n in enumerate(shape)) for ones in along)]
        )
    )
    size = math.prod(scale_shape)
    scale = draw(st.lists(st.floats(-20, 20), min_size=size, max_size=size))
    return Scaled(
        torch.tensor(mantissa, dtype=DOUBLE).reshape(shape),
        torch.tensor(scale, dtype=DOUBLE).reshape(scale_shape),
    )


def plain(x: Scaled) -> Tensor:
    assert x.uniform or x.log_scale.dim() == x.mantissa.dim()
    return x.mantissa * x.log_scale.exp()


def assert_equal(found: Scaled, expected: Tensor) -> None:
    torch.testing.assert_close(plain(found), expected, rtol=1e-12, atol=0)


@given(values(), values(), values((3,)))
def test_elementwise_operations(a: Scaled, b: Scaled, row: Scaled) -> None:
    assert_equal(scaled.add(a, b), plain(a) + plain(b))
    assert_equal(scaled.add(row, a), plain(row) + plain(a))
    assert_equal(scaled.multiply(a, b), plain(a) * plain(b))
    assert_equal(scaled.multiply(a, row), plain(a) * plain(row))
    assert_equal(a.times(1e250), plain(a) * 1e250)
    assert_equal(a.with_one_scale(), plain(a))
    assert_equal(a.merged([1]), plain(a))
    torch.testing.assert_close(plain(a.sum()), plain(a).sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(a.log().exp(), plain(a), rtol=1e-12, atol=0)


@given(values(), values(), values((3,)))
def test_moves_and_sums_of_products(a: Scaled, b: Scaled, row: Scaled) -> None:
    class Net:
        order, unroll = 2.0, False

        def constant(self, value: Tensor) -> Scaled:
            return scaled.power_of(value, 2)

    assert_equal(scaled.move(lambda *p: torch.cat(p, 1), a, b), torch.cat([plain(a), plain(b)], 1))
    assert_equal(scaled.move(lambda m: m.t()[1:], a), plain(a).t()[1:])
    for last in (True, False):
        assert_equal(
            contraction(Net(), torch.nn.functional.linear, a, b, last=last), plain(a) @ plain(b).T
        )
        assert_equal(contraction(Net(), torch.matmul, a, row, last=last), plain(a) @ plain(row))
    assert_equal(
        contraction(Net(), torch.matmul, a, plain(row), last=True), plain(a) @ plain(row) ** 2
    )


def test_terms_of_any_distance_add_up() -> None:
    """The smaller vanishes beside the larger, a zero does not set the scale, nothing overflows."""
    small, large, zero = (Scaled(torch.full((2,), m, dtype=DOUBLE), torch.tensor(s, dtype=DOUBLE))
                          for m, s in ((1.0, -5000.0), (2.0, 5000.0), (0.0, 9000.0)))  # fmt: skip
    assert float(scaled.add(small, large).log()[0]) == pytest.approx(5000 + math.log(2))
    assert float(scaled.add(small, zero).log()[0]) == pytest.approx(-5000)
    joined = scaled.move(lambda *p: torch.cat(p), small, large)
    assert joined.log().tolist() == pytest.approx(
        [-5000, -5000, 5000 + math.log(2), 5000 + math.log(2)]
    )
    assert float(joined.sum().log()) == pytest.approx(5000 + math.log(4))


@pytest.mark.parametrize("magnitude", [0.0, 1e-300, 1e-60, 1.0, 1e60, 1e300])
@pytest.mark.parametrize("order", [0.5, 1, 2, 3])
def test_powers_of_any_magnitude(magnitude: float, order: float) -> None:
    found = scaled.power_of(torch.tensor([magnitude, -magnitude], dtype=DOUBLE), order)
    expected = order * math.log(magnitude) if magnitude else -math.inf
    assert found.log().tolist() == pytest.approx([expected] * 2, rel=1e-12)


def test_an_empty_tensor_stays_empty() -> None:
    empty = Scaled(torch.zeros(0, 2, dtype=DOUBLE), torch.zeros(1, 1, dtype=DOUBLE))
    assert empty.normalized().shape == empty.with_one_scale().shape == (0, 2)
    assert float(empty.sum().mantissa) == 0

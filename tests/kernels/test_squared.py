"""The squared network's sequences against the recurrence written down in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.plain_sums import plain_sums
from pathsgd.kernels.squared_products import squared_products
from pathsgd.kernels.squared_sequences import squared_sequences

KINDS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float64),
]


def recurrence(
    w: Tensor, u: Tensor, v: Tensor, steps: int, every_step: bool, decay: float
) -> tuple[Tensor, Tensor]:
    a, h, delta = w.double().square(), [u.double()], [v.double()]
    for _ in range(steps - 1):
        h.append(a @ h[-1] + u)
        delta.append(a.t() @ delta[-1] + (v if every_step else 0))
    scale = torch.tensor(decay, dtype=torch.float64) ** torch.arange(steps)
    return torch.stack(h) * scale[:, None], torch.stack(delta[::-1]) * scale.flip(0)[:, None]


@settings(max_examples=80)
@given(
    hidden=st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 257, 300])),
    steps=st.integers(1, 90),
    every_step=st.booleans(),
    root=st.sampled_from([1.0, 1.4, 0.9]),
    kind=st.sampled_from(KINDS),
)
def test_equals_the_recurrence(
    kernel: str,
    hidden: int,
    steps: int,
    every_step: bool,
    root: float,
    kind: tuple[torch.dtype, torch.dtype],
) -> None:
    torch.manual_seed(0)
    w = torch.randn(hidden, hidden, dtype=kind[0]) / hidden**0.5
    u, v = torch.rand(2, hidden, dtype=kind[1]) + 0.1
    found = squared_sequences(w, u, v, steps, every_step, 1 / root)
    expected = recurrence(w, u, v, steps, every_step, 1 / root)
    for a, b in zip(found, expected):
        assert a.dtype == kind[1]
        # Everything is positive: rounding errors grow with the number of steps only, entry by
        # entry.
        torch.testing.assert_close(
            a.double(), b, rtol=(1e-6 if kind[1] == torch.float32 else 1e-14) * (steps + 20), atol=0
        )


@pytest.mark.parametrize("hidden", [30, 300])
def test_two_threads(hidden: int, kernel: str) -> None:
    w, u, v = torch.randn(hidden, hidden) / hidden**0.5, torch.rand(hidden), torch.rand(hidden)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(squared_sequences(w, u, v, 20, True))
    torch.set_num_threads(before)
    torch.testing.assert_close(*found)


def test_scaling_keeps_long_sequences_finite(kernel: str) -> None:
    """A He-initialised net overflows float32 within 150 steps.

    Divided by its Perron root it stays finite.
    """
    torch.manual_seed(0)
    w = torch.randn(100, 100) * 0.2**0.5
    root = torch.linalg.eigvals(w.double().square()).abs().max().item()
    u, v = torch.rand(100), torch.rand(100)
    plain, scaled = (squared_sequences(w, u, v, 784, False, 1 / root) for root in (1.0, root))
    assert not plain[0].isfinite().all()
    assert all(t.isfinite().all() and (t > 0).all() for t in scaled)


def test_other_types_of_numbers_are_torchs(kernel: str) -> None:
    w, u = torch.rand(3, 3), torch.rand(3)
    for weight in (w.bfloat16(), w.double()):
        found = squared_sequences(weight, u, u, 4, True)
        torch.testing.assert_close(found, recurrence(weight, u, u, 4, True, 1.0), check_dtype=False)
    assert squared_sequences(*(t.to("meta") for t in (w, u, u)), 4, True)[0].is_meta


@pytest.mark.parametrize(
    ("w", "u", "v", "steps"),
    [
        ((3, 4), (3,), (3,), 2),
        ((3, 3), (4,), (3,), 2),
        ((3, 3), (3,), (3, 1), 2),
        ((3, 3), (3,), (3,), 0),
    ],
)
def test_mistakes_are_named(
    w: tuple[int, ...], u: tuple[int, ...], v: tuple[int, ...], steps: int, kernel: str
) -> None:
    arguments = (torch.rand(w), torch.rand(u), torch.rand(v), steps, True)
    with pytest.raises(ValueError, match=r"square|at least 1"):
        squared_sequences(*arguments)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    given_x=st.booleans(),
    given_y=st.booleans(),
)
def test_squared_products(
    kernel: str, rows: int, columns: int, dtype: torch.dtype, given_x: bool, given_y: bool
) -> None:
    torch.manual_seed(rows)
    w = torch.randn(columns, rows, dtype=torch.float64).to(dtype).t()
    x, y = torch.rand(columns, dtype=torch.float64), torch.rand(rows, dtype=torch.float64)
    by_x, by_y = squared_products(w, x if given_x else None, y if given_y else None)
    ones = torch.ones_like
    torch.testing.assert_close(by_x, w.double() ** 2 @ (x if given_x else ones(x)))
    torch.testing.assert_close(by_y, (w.double() ** 2).t() @ (y if given_y else ones(y)))
    assert squared_products(w, into=False)[0] is None and squared_products(w, out=False)[1] is None


def test_squared_products_on_two_threads(kernel: str, two_threads: None) -> None:
    w = torch.randn(700, 301)
    by_x, by_y = squared_products(w)
    torch.testing.assert_close(by_x, w.double().square().sum(1))
    torch.testing.assert_close(by_y, w.double().square().sum(0))


@settings(max_examples=60)
@given(
    hidden=st.one_of(st.integers(1, 40), st.sampled_from([255, 257, 300])),
    steps=st.sampled_from([1, 2, 3, 30, 300]),
    every_step=st.booleans(),
    kind=st.sampled_from(KINDS),
)
def test_sums_of_a_plain_net(
    kernel: str, hidden: int, steps: int, every_step: bool, kind: tuple[torch.dtype, torch.dtype]
) -> None:
    torch.manual_seed(0)
    inputs, outputs, root, biased = 1 + hidden % 3, 1 + hidden % 4, 1.2, hidden % 2 == 0
    w = torch.randn(hidden, hidden, dtype=kind[0]) / (4 * hidden) ** 0.5
    w_in, w_out = (
        torch.randn(hidden, inputs, dtype=kind[0]) + 0.1,
        torch.randn(outputs, hidden, dtype=kind[0]),
    )
    biases = [torch.randn(hidden, dtype=kind[0]) for _ in range(2)] if biased else []
    b_out = torch.randn(outputs, dtype=kind[0]) if biased else None
    e = torch.rand(inputs, dtype=torch.float64) + 0.1 if hidden % 5 else None
    found = plain_sums(w_in, e, w, biases, w_out, b_out, steps, every_step, 1 / root, kind[1])
    u = w_in.double().square() @ (torch.ones(inputs).double() if e is None else e)
    u = u + sum(b.double().square() for b in biases)
    v = w_out.double().square().sum(0)
    h, delta = recurrence(w, u, v, steps, every_step, 1 / root)
    fade = torch.tensor(1 / root, dtype=torch.float64) ** torch.arange(steps)
    into, flow = (fade[:, None] * delta).sum(0), (h * delta).sum(0)
    out = (fade.flip(0)[:, None] * h).sum(0) if every_step else h[-1]
    recurrent = torch.einsum("si,sj->ij", delta[1:], h[:-1])
    gamma_sq = float(v @ out)
    if b_out is not None:
        gamma_sq += float(b_out.double().square().sum() * fade[-1] * (steps if every_step else 1))
    rtol = (1e-6 if kind[1] == torch.float32 else 1e-14) * (steps + 20)
    assert found.gamma_sq == pytest.approx(gamma_sq, rel=rtol)
    assert found.growth == pytest.approx(
        float((v @ h[-1]) / (v @ h[-2])) if steps > 1 else 0.0, rel=rtol
    )
    expected = (
        h,
        delta,
        into / gamma_sq,
        out / gamma_sq,
        flow / gamma_sq,
        recurrent / gamma_sq / root,
    )
    for a, b in zip((found.h, found.delta, *found.vectors, found.recurrent), expected):
        torch.testing.assert_close(a.double(), b, rtol=rtol, atol=1e-34)  # flushed to zero below
    assert found.largest == pytest.approx(float(torch.maximum(h.max(), delta.max())), rel=rtol)
    sums = [into, out, *([recurrent] if steps > 1 else [])]
    assert found.least == pytest.approx(min(float(t.min()) for t in sums), rel=rtol, abs=1e-34)


def test_sums_that_overflow_say_so(kernel: str) -> None:
    w = torch.full((4, 4), 3.0)
    found = plain_sums(w, None, w, [], w, None, 100, False, 1.0, torch.float32)
    assert found.largest == float("inf")

"""The passes of an optimiser's step against the formulas written out in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pathsgd.kernels.spectral_norm import spectral_norm
from pathsgd.kernels.update import ADAM, GRADIENT, MOMENTUM, NESTEROV, Operands, Update, UpdateRule

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}
RULES = [
    UpdateRule(GRADIENT, 0.7),
    UpdateRule(MOMENTUM, 0.7, momentum=0.9),
    UpdateRule(NESTEROV, -0.7, momentum=0.9),
    UpdateRule(ADAM, 0.7, betas=(0.9, 0.99), eps=1e-3),
    UpdateRule(ADAM, 0.7, betas=(0.8, 0.95), eps=1e-3, whitens=False),
]


def whitening(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    """A whitening that is constant along no, one or every dimension, with a zero in it."""
    small = {
        "full": shape,
        "row": (1, *shape[1:]),
        "column": (*shape[:-1], 1),
        "scalar": (1,) * len(shape),
    }[kind]
    values = torch.rand(small, dtype=dtype) + 0.5
    if values.numel() > 1:
        values.view(-1)[0] = 0
    return values.expand(shape)


def operands(shapes: list[tuple[int, ...]], kinds: list[str], dtype: torch.dtype) -> Operands:
    def draw() -> list[Tensor]:
        return [torch.randn(shape, dtype=dtype) for shape in shapes]

    whitenings = [whitening(shape, kind, dtype) for shape, kind in zip(shapes, kinds)]
    return Operands(draw(), draw(), whitenings, draw(), [t.square() for t in draw()])


def expected(o: Operands, rule: UpdateRule, alpha: float, keep: float) -> list[tuple[Tensor, ...]]:
    """p, m, v and d after one step, and sum u^2 before it."""
    found = []
    for p, g, w, m, v in ([t.double() for t in row] for row in zip(*list(vars(o).values())[:5])):
        u = g * w
        f, mu, (b1, b2) = rule.factor, rule.momentum, rule.betas
        if rule.direction in (MOMENTUM, NESTEROV):
            m = mu * m + f * u
        if rule.direction == ADAM:
            x = f * u if rule.whitens else f * u * w
            m, v = b1 * m + (1 - b1) * x, b2 * v + (1 - b2) * x**2
        d = {GRADIENT: u, MOMENTUM: m, NESTEROV: f * u + mu * m, ADAM: m / (v.sqrt() + rule.eps)}[
            rule.direction
        ]
        p = keep * p + alpha * (d * w if rule.whitens else d)
        found.append((p, m, v, torch.where(w == 0, 0.0, d), u.square().sum()))
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.direction}-{r.whitens}")
@settings(max_examples=25)
@given(
    shapes=st.lists(
        st.lists(st.integers(1, 21), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
    ),
    kind=st.sampled_from(["full", "row", "column", "scalar"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    keep=st.sampled_from([1.0, 0.9]),
)
def test_a_step_is_its_formula(kernel, rule, shapes, kind, dtype, keep) -> None:
    torch.manual_seed(len(shapes))
    o = operands(shapes, [kind] * len(shapes), dtype)
    check(o, rule, keep)


def check(o: Operands, rule: UpdateRule, keep: float) -> None:
    dtype = o.parameters[0].dtype
    wanted = expected(o, rule, -0.3, keep)
    if rule.direction != ADAM:
        o.second = ()
    if rule.direction == GRADIENT:
        o.first = ()
    together = copy.deepcopy(o)
    step = Update(o)
    squares = step.square_sums()
    if o.first:
        step.moments(rule)
    directions = [step.direction(rule, i) for i in range(len(o.parameters))]
    lengths = [step.direction_square(rule, i) for i in range(len(o.parameters))]
    step.apply(rule, -0.3, keep)
    if o.first:  # both passes in one, bit for bit
        Update(together).advance(rule, -0.3, keep)
        for tensors, others in (
            (o.parameters, together.parameters),
            (o.first, together.first),
            (o.second, together.second),
        ):
            assert all(torch.equal(one, other) for one, other in zip(tensors, others))
    for i, (p, m, v, d, square) in enumerate(wanted):
        close = {"rtol": 20 * TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype], "check_dtype": False}
        torch.testing.assert_close(o.parameters[i].double(), p, **close)
        torch.testing.assert_close(directions[i].double(), d, **close)
        assert lengths[i] == pytest.approx(
            float(d.square().sum()), rel=1e-4 if dtype == torch.float32 else 1e-12
        )
        assert squares[i] == pytest.approx(
            float(square), rel=1e-5 if dtype == torch.float32 else 1e-12
        )
        if o.first:
            torch.testing.assert_close(o.first[i].double(), m, **close)
        if o.second:
            torch.testing.assert_close(o.second[i].double(), v, **close)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.direction}-{r.whitens}")
def test_large_parameters_are_shared_out_to_threads(kernel, rule, two_threads) -> None:
    torch.manual_seed(0)
    shapes = [(300, 301), (5, 40001), (1, 70000), (7,)]
    check(operands(shapes, ["row", "column", "full", "full"], torch.float32), rule, 0.99)


def test_odd_layouts(kernel) -> None:
    """Gradients and whitenings that are not dense, and parameters that are not."""
    torch.manual_seed(0)
    for make_odd in ("gradients", "whitenings", "parameters"):
        o = operands([(6, 9), (4, 5)], ["full", "row"], torch.float32)
        odd = list(getattr(o, make_odd))
        odd[0] = odd[0].t().contiguous().t()
        setattr(o, make_odd, odd)
        check(o, RULES[1], 1.0)


def test_squares_that_leave_float32(kernel) -> None:
    for size in (1e-30, 1e30):
        o = Operands([torch.zeros(3)], [torch.full((3,), size)], [torch.ones(3)])
        assert Update(o).square_sums() == pytest.approx([3 * size**2], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (17, 40), (40, 17), (3, 300)])
def test_the_spectral_norm(kernel, dtype, size, shape) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=dtype) * size
    found = spectral_norm(matrix, torch.rand(shape[1], dtype=dtype), 200)
    length, vector = found
    assert length == pytest.approx(float(torch.linalg.matrix_norm(matrix.double(), 2)), rel=1e-4)
    assert float(vector.norm()) == pytest.approx(1.0, rel=1e-5)

"""Every kernel operation at random sizes and options, under sanitizers, against plain loops."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathsgd.nn
from support.fuzz import CASES, fuzzed
from support.harness import COMPILER, SANITIZERS, build_harness, check, run

EACH = 25
OPERATIONS = [
    "rnn", "squared", "squared_products", "squared_convolution", "squares", "narrow", "row_lengths",
    "mean_log", "linear_sweep", "flow_sides", "spectral_norm", "follow_directions", "update",
    "cross_entropy", "rank_one_sum",
]  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> str:
    """A line for the harness: operation, seed, steps, rows, units, inputs."""
    units = draw(
        st.one_of(
            st.integers(1, 40), st.sampled_from([63, 64, 65, 100, 129, 255, 256, 257, 260, 333])
        )
    )
    operation = draw(st.sampled_from(OPERATIONS))
    # Exact sums, so that both find the same units active: few steps, and fewer with many units.
    steps = draw(
        st.integers(
            1, (4 if units <= 16 else 3 if units <= 40 else 2) if operation == "rnn" else 40
        )
    )
    rows = draw(st.integers(1, 40 if units <= 40 else 9))
    seed, repeats = draw(st.integers(0, 2**31 - 1)), draw(st.integers(1, 20))
    return f"{operation} {seed} {steps} {rows} {units} {repeats}"


@pytest.mark.nightly
@pytest.mark.timeout(max(1800, CASES))  # minutes for the compiler, the rest for the cases
def test_the_kernels_under_sanitizers(tmp_path: Path) -> None:
    """Of 16 bytes, as any processor has them: the widths differ in nothing but a number."""
    if COMPILER is None:
        assert pathsgd.nn.backend().name == "torch"
        return
    harness = build_harness(tmp_path, 16, SANITIZERS)
    check(run(harness))

    @fuzzed(0.3, EACH)
    @given(st.lists(cases(), min_size=EACH, max_size=EACH))
    def random_cases(lines: list[str]) -> None:
        check(run(harness, "-", input="\n".join(lines)))

    random_cases()


test_the_kernels_under_sanitizers.cases = round(0.3 * CASES)  # type: ignore[attr-defined]

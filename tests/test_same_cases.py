"""Every run draws the same cases and the same random numbers."""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("run", ["first", "second"])
def test_a_test_starts_with_the_same_random_numbers(run: str) -> None:
    drawn = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    expected = torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert drawn == (random.Random(0).random(), np.random.RandomState(0).rand(), expected)


def test_an_example_starts_with_the_same_random_numbers() -> None:
    numbers = []

    @given(st.booleans())
    def draw(_: bool) -> None:
        numbers.append(torch.rand(1).item())

    draw()
    assert len(numbers) > 1 and set(numbers) == {numbers[0]}


def test_the_cases_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    def cases() -> list[int]:
        numbers = []

        @settings(derandomize=True, max_examples=500)
        @given(st.integers())
        def draw(number: int) -> None:
            numbers.append(number)

        draw()
        return numbers

    before = cases()
    file = tmp_path / "constants.py"
    file.write_text(f"CONSTANTS = {list(range(1000, 2000))}")
    spec = importlib.util.spec_from_file_location("constants", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "constants", module)
        spec.loader.exec_module(module)
        assert cases() == before

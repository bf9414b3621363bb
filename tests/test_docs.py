"""The pages keep their word: tables are those of the rules, examples run."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

import pathsgd
from casework import between
from pathsgd.rules import RULES
from pathsgd.rules.__main__ import covered, refused

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tables_of_rules_are_up_to_date() -> None:
    page = (DOCS / "rules.md").read_text()
    assert covered() in page and refused() in page, "put the output of `python -m pathsgd.rules` into docs/rules.md"


def test_the_example_of_a_new_rule_works() -> None:
    source = re.search(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert source is not None
    case = between(lambda h: h.cumsum(1))
    model, inputs = case.build("cumsum"), case.examples()
    with pytest.raises(pathsgd.UnsupportedOperation, match="cumsum"):
        pathsgd.gamma_sq(model, *inputs)
    try:
        exec(source[1], {"__name__": "example"})
        expected = case.oracle(model)({name: p.detach().square() for name, p in model.named_parameters()})
        torch.testing.assert_close(pathsgd.gamma_sq(model, *inputs), expected)
        assert pathsgd.node_spaces(model, *inputs).count == 1
    finally:
        del RULES["cumsum"]


@pytest.mark.parametrize("module", ["explain", "invariance", "squared"])
def test_examples_in_docstrings_run(module: str) -> None:
    results = doctest.testmod(import_module(f"pathsgd.{module}"))
    assert results.attempted > 0 and results.failed == 0


def test_the_pages_name_files_that_exist() -> None:
    root = DOCS.parent
    for page in ("math.md", "extending.md"):
        for name in set(re.findall(r"`?((?:[a-z_]+/)*[a-z_]+\.py)`?", (DOCS / page).read_text())):
            assert any((root / place / name).exists() for place in ("src/pathsgd", ".", "src/pathsgd/rules")), (
                page,
                name,
            )

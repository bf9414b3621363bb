"""The pages keep their word: tables are those of the rules, examples run."""

from __future__ import annotations

import doctest
import json
import operator
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import torch

import pathsgd
from pathsgd.network.rules import RULES
from pathsgd.network.rules.__main__ import covered, refused
from pathsgd_lab.cli import COMMANDS, main
from pathsgd_lab.systems import SYSTEMS
from pathsgd_lab.tasks import TASKS
from support.casework import between
from support.fuzz import table

DOCS = Path(__file__).parents[1] / "docs"
PLACES = (
    "src/pathsgd",
    ".",
    "src/pathsgd/rules",
    "lab/src/pathsgd_lab/tasks",
    "lab/src/pathsgd_lab/systems",
)


def test_the_tables_of_rules_are_up_to_date() -> None:
    page = (DOCS / "rules.md").read_text()
    assert covered() in page and refused() in page, (
        "put `python -m pathsgd.network.rules` into docs/rules.md"
    )


def test_the_page_has_the_counts_of_the_last_fuzz() -> None:
    assert table() in (DOCS / "reliability.md").read_text(), (
        "put the output of tests/support/fuzz.py there"
    )


@pytest.mark.parametrize("name", ["models", "scaling", "loops"])
def test_the_tables_of_benchmarks_are_those_of_their_records(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DOCS.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    module, end = import_module(name), import_module("models").END
    record = json.loads((folder / "records" / f"{name}.json").read_text())
    page = (DOCS / "performance.md").read_text()
    assert module.BEGIN + module.table(record) + end in page, (
        f"run `python benchmarks/{name}.py --page`"
    )


def test_the_tables_of_steps_are_those_of_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DOCS.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    steps, end = import_module("steps"), import_module("models").END
    records = {
        name: json.loads((folder / "records" / f"{name}.json").read_text())
        for name in steps.RECORDS
    }
    page = (DOCS / "performance.md").read_text()
    assert steps.BEGIN + steps.table(records) + end in page, (
        "run `python benchmarks/steps.py --page`"
    )


def test_the_loops_of_the_benchmark_are_the_layers_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "benchmarks"))
    loops = import_module("loops")
    for name in loops.LOOPS:
        loop, layer = loops.pair(name, 7)
        x = torch.randint(loops.SYMBOLS, (12, 3))
        torch.testing.assert_close(loop(x), layer(x))
        assert loops.difference(loop, layer, x) < 1e-9


def test_the_example_of_a_new_rule_works() -> None:
    source = re.search(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    assert source is not None
    case = between(lambda h: h.nansum(1))
    model, inputs = case.build("nansum"), case.examples()
    with pytest.raises(pathsgd.UnsupportedOperation, match="nansum"):
        pathsgd.gamma_sq(model, *inputs)
    try:
        exec(source[1], {"__name__": "example"})
        expected = case.oracle(model)(
            {name: p.detach().square() for name, p in model.named_parameters()}
        )
        torch.testing.assert_close(pathsgd.gamma_sq(model, *inputs), expected)
        assert pathsgd.node_spaces(model, *inputs).count == 1
    finally:
        del RULES["nansum"]


ROOT = Path(pathsgd.__file__).parent
MODULES = [
    ".".join(("pathsgd", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("[!_]*.py")
]
SHOWN = [
    "gamma_sq",
    "explain",
    "check_invariance",
    "path_normalize_grad_",
    "PathSGD",
    "PathAdam",
    "optim.wrap",
]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_examples_in_docstrings_run(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0


@pytest.mark.parametrize("name", SHOWN)
def test_what_users_start_with_has_an_example(name: str) -> None:
    assert ">>>" in operator.attrgetter(name)(pathsgd).__doc__


def test_the_pages_name_files_that_exist() -> None:
    root = DOCS.parent
    for page in ("math.md", "extending.md", "lab.md", "reliability.md"):
        for name in set(re.findall(r"`?((?:[a-z_]+/)*[a-z_]+\.py)`?", (DOCS / page).read_text())):
            assert any((root / place / name).exists() for place in PLACES), (
                page,
                name,
            )


def test_the_commands_of_the_lab_s_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATHSGD_DATA", str(tmp_path / "data"))
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "lab.md").read_text(), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert {words[1] for words in commands} >= set(COMMANDS) - {"demo", "inspect"}
    for program, *words in commands:
        assert program == "pathsgd" and main(words) == 0, (words, capsys.readouterr().err)


def test_the_lab_s_page_names_every_task_and_system() -> None:
    page = (DOCS / "lab.md").read_text()
    assert all(f"`{name}`" in page for name in (*TASKS, *SYSTEMS))

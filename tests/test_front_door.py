"""What a new reader sees first is true: README, the picture, the index of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pathsgd
from pathsgd.network.rules import RULES
from pathsgd_lab.report.markdown import filled, tables_in
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.pages import page_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_readme_is_short_and_its_six_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(README.splitlines()) < 120
    (example,) = blocks(README)
    assert len(example.splitlines()) == 6
    exec(example, {"__name__": "example"})
    assert "PathAdam" in capsys.readouterr().out


def given(page: str) -> dict[str, Any]:
    """What the text around a page's code takes as given."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "example"}
    if page == "optimisers.md":
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
        names |= {"torch": torch, "pathsgd": pathsgd, "model": model, "batches": batches}
        names |= {"loss": torch.nn.functional.mse_loss}
    if page == "extending.md":
        names["VECTOR_OPERATIONS"] = {}
    return names


@pytest.mark.parametrize(
    "page", [path for path in PAGES if blocks(path.read_text())], ids=lambda path: path.name
)
@pytest.mark.filterwarnings("error")
def test_the_code_on_a_page_runs_from_top_to_bottom(page: Path) -> None:
    """Notebook cells (`code-cell`) run when the documentation is built; these are the rest."""
    names, rules = given(page.name), dict(RULES)
    try:
        for block in blocks(page.read_text()):
            exec(block, names)
    finally:
        RULES.clear()
        RULES.update(rules)


def test_no_other_kind_of_block_holds_python() -> None:
    for page in PAGES:
        for language in re.findall(r"^```(\S*)$", page.read_text(), re.M):
            assert language in ("", "python", "sh", "{toctree}", "{eval-rst}"), (
                page.name,
                language,
            )


def test_the_readme_s_tables_are_those_of_the_records() -> None:
    assert len(tables_in(README)) == 2
    assert filled(README, page_tables(Studies())) == README, "run `pathsgd tables`"


def rows(page: str, table: str) -> dict[str, list[str]]:
    """A generated table's rows by their first entry."""
    (found,) = re.findall(rf"<!-- table {table} -->(.*?)<!-- end of table -->", page, re.DOTALL)
    split = [
        [entry.strip() for entry in line.strip("|").split("|")]
        for line in found.splitlines()
        if line[:1] == "|"
    ]
    return {first: rest for first, *rest in reversed(split)}


def study(name: str) -> str:
    return (ROOT / "studies" / name / "README.md").read_text()


def test_what_the_readme_says_without_a_number_is_what_the_tables_say() -> None:
    adding = rows(study("adding-100-default"), "runs-adding-100-default")
    for method in (
        "RNN-Path, PathAdam, absolute, balanced",
        "RNN-Path, PathAdam, absolute, scaled by up to 100",
        "RNN-ReLU, Adam, balanced",
    ):
        _, seeds, outcomes, _ = adding[method]
        assert outcomes == f"{seeds} / 0 / 0"
    few, _, _ = adding["RNN-ReLU, Adam, scaled by up to 100"][2].split(" / ")
    assert 0 < int(few) < int(seeds) / 2
    lengths = rows(README, "growth-lengths")
    solved = {
        length: lengths[length][0].split(" of ")
        for length in lengths
        if length.endswith("rate 0.001")
    }
    too_long = solved.pop("T = 2000, rate 0.001")
    assert (
        len(solved) >= 3
        and all(some == every for some, every in solved.values())
        and 0 < int(too_long[0]) < int(too_long[1])
    )
    scaled = study("badly-scaled-text")
    text = rows(scaled, "runs-badly-scaled-text")
    diverged = re.findall(r"\| Adam \| ([\d.e-]+) \| 1 \| 0 / 0 / 1 \|", scaled)
    assert {"0.001", "0.002", "0.005", "0.01"} == set(diverged)
    buys = rows(README, "compare-buys")
    assert len(buys) == 2 + 6  # head and rule
    coordinates = float(buys["mean excess in %, balanced starts"][1])
    assert coordinates < min(
        float(entry.split()[0]) for entry in buys["mean excess in %, balanced starts"][2:]
    )
    assert float(text["PathAdam, absolute"][-1]) < float(text["Adam"][-1])
    words = rows(study("ptb-word"), "ptb-word")
    error = {
        name: float(words[name][1].split()[0])
        for name in ("Adam", "PathAdam, relative", "PathAdam, absolute")
    }
    assert (
        error["Adam"] < min(error["PathAdam, relative"], error["PathAdam, absolute"])
        and words["Adam"][3] == "1"
    )


def test_no_figure_in_the_readme_is_typed_by_hand() -> None:
    """Outside code and generated tables the only numbers are the paper's year and in names."""
    prose = re.sub(
        r"```.*?```|<!-- table.*?end of table -->|`[^`]*`|\]\([^)]*\)|^    .*?$",
        "",
        README,
        flags=re.DOTALL | re.M,
    )
    assert set(re.findall(r"(?<![\w-])\d[\d.,]*%?", prose)) <= {"2016", "3"}  # BSD 3-Clause


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_picture_shows_what_its_caption_says() -> None:
    """PathAdam's two curves are one to the eye, Adam's are not."""
    losses = json.loads((ROOT / "docs" / "pictures" / "two-scalings.json").read_text())["losses"]
    apart = {}
    for optimiser, curves in losses.items():
        first, second = (torch.tensor(values, dtype=torch.float64) for values in curves.values())
        apart[optimiser] = ((first - second).abs() / first).max().item()
    assert apart["PathAdam"] < 1e-3 and apart["Adam"] > 1
    assert (ROOT / "docs" / "pictures" / "two-scalings.svg").stat().st_size > 10_000

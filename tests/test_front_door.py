"""What a new reader meets first keeps its word: README, the picture, the index of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from pathsgd.lab.experiments.pages import page_tables
from pathsgd.lab.report.markdown import filled, tables_in

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_readme_is_short_and_its_six_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(README.splitlines()) < 120
    (example,) = blocks(README)
    assert len(example.splitlines()) == 6
    exec(example, {"__name__": "example"})
    assert "PathAdam" in capsys.readouterr().out


def test_the_example_of_the_index_runs() -> None:
    (example,) = blocks((ROOT / "docs" / "index.md").read_text())
    exec(example, {"__name__": "example"})


def test_the_readme_s_tables_are_those_of_the_records() -> None:
    assert len(tables_in(README)) == 2
    assert filled(README, page_tables(ROOT / "results")) == README, "run `pathsgd tables`"


def test_no_figure_in_the_readme_is_typed_by_hand() -> None:
    """Outside code and generated tables there is no number but the paper's year, and those in names."""
    prose = re.sub(
        r"```.*?```|<!-- table.*?end of table -->|`[^`]*`|\]\([^)]*\)|^    .*?$", "", README, flags=re.DOTALL | re.M
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
    losses = json.loads((ROOT / "results" / "two-scalings.json").read_text())["losses"]
    apart = {}
    for optimiser, curves in losses.items():
        first, second = (torch.tensor(values, dtype=torch.float64) for values in curves.values())
        apart[optimiser] = ((first - second).abs() / first).max().item()
    assert apart["PathAdam"] < 1e-3 and apart["Adam"] > 1
    assert (ROOT / "docs" / "pictures" / "two-scalings.svg").stat().st_size > 10_000

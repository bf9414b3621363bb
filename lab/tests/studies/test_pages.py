"""Pages show what the records say: every marked table is the one that `pathsgd tables` makes."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from pathlib import Path

import pytest

from pathsgd_lab.cli import main
from pathsgd_lab.commands.tables import stale_pictures
from pathsgd_lab.errors import PageError
from pathsgd_lab.report.markdown import filled, markdown, tables_in
from pathsgd_lab.report.model import Entry, TableData
from pathsgd_lab.report.select import best_group
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.pages import page_pictures, page_tables
from pathsgd_lab.studies.study import over, run
from pathsgd_lab.sweep.results import Filed

ROOT = Path(__file__).parents[3]
STUDIES = Studies()
PAPER_RULE, EVERY_CELL = (
    import_module(f"studies.{name}.study") for name in ("paper-rule", "every-cell")
)
WRITTEN = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *STUDIES.folder.glob("*/README.md")]
PAGES = [page for page in sorted(WRITTEN) if tables_in(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "/".join(page.parts[-2:]))
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    text = page.read_text("utf-8")
    assert filled(text, page_tables(STUDIES)) == text, "run `pathsgd tables`"


def test_the_pictures_of_pages_are_up_to_date(tmp_path: Path) -> None:
    assert stale_pictures(STUDIES, ROOT / "docs" / "pictures", write=False) == [], (
        "run `pathsgd tables`"
    )
    names = list(page_pictures(STUDIES))
    assert (
        stale_pictures(STUDIES, tmp_path, write=True) == names
    )  # none is there: each is written, once
    assert stale_pictures(STUDIES, tmp_path, write=True) == []
    (tmp_path / names[0]).write_text("changed")
    assert stale_pictures(STUDIES, tmp_path, write=False) == names[:1]


def test_a_page_is_renewed_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table paper-rule-to-the-end -->\nold\n<!-- end of table -->\nafter\n"
    )
    words = ["tables", str(page), "--studies", str(STUDIES.folder)]
    assert main([*words, "--check"]) == 1
    assert "old" in page.read_text()
    assert main(words) == 0
    text = page.read_text()
    assert (
        text.startswith("before\n")
        and text.endswith("after\n")
        and "old" not in text
        and "| IRNN, SGD" in text
    )
    assert main([*words, "--check"]) == 0
    capsys.readouterr()


def test_a_table_that_does_not_exist_is_named() -> None:
    with pytest.raises(PageError, match="no table 'nothing'"):
        filled("<!-- table nothing -->\n<!-- end of table -->", page_tables(STUDIES))


def test_markdown_leaves_columns_out_and_keeps_bars_apart() -> None:
    table = TableData("t", ("a", "b"), ((Entry("x|y"), Entry("z")),), "said below")
    assert markdown(table, without=("b",)) == "| a |\n|---|\n| x\\|y |\n\nsaid below\n"


def test_every_cell_has_runs_or_a_reason() -> None:
    results = STUDIES.filed("every-cell")
    for cells in EVERY_CELL.columns().values():
        for cell in cells:
            group = EVERY_CELL.answer(cell, results)
            assert all(cell.wanted(record.spec) for record in group)
            assert group or cell.not_run
    texts = [row[3].text for table in EVERY_CELL.every_cell(results) for row in table.rows]
    assert texts and all(texts)


def test_without_records_every_cell_says_so() -> None:
    rows = [row for table in EVERY_CELL.every_cell([]) for row in table.rows]
    assert rows and all(row[3].text.startswith("not run: ") for row in rows)


def some_record() -> Record:
    record: Record = STUDIES.filed("adding")[0].record
    return record


def test_where_every_run_diverged_the_longest_counts() -> None:
    record = some_record()
    specs = over(run("adding", "rnn_path", "path-adam"), lr=(1e-2, 1e-3))
    records = [
        dataclasses.replace(record, spec=spec, outcome="diverged", metrics={}, steps=steps)
        for spec, steps in zip(specs, (100, 200), strict=True)
    ]
    assert best_group(records) == [records[1]]


def test_the_map_tells_who_learns() -> None:
    record = some_record()
    specs = over(run("adding", "rnn_path", "path-sgd-paper", steps=20_000), lr=(1.0, 0.1, 0.01))
    metrics = ({"valid": 0.05, "test": 0.05}, {"valid": 0.166, "test": 0.166}, {})
    outcomes = ("finished", "finished", "diverged")
    records = [
        dataclasses.replace(record, spec=spec, outcome=outcome, metrics=values, curve=())  # type: ignore[arg-type]
        for spec, outcome, values in zip(specs, outcomes, metrics, strict=True)
    ]
    assert all(PAPER_RULE.is_map(r.spec) for r in records)
    table = PAPER_RULE.map_table("test", records)
    assert table.columns[2:] == ("1", "0.1", "0.01")
    assert [entry.text for entry in table.rows[0][2:]] == ["0.05", "–", "×"]
    assert PAPER_RULE.map_entry(None).text == "·"


def test_the_runs_to_the_end_are_no_part_of_the_map() -> None:
    assert not any(PAPER_RULE.is_map(spec) for spec in PAPER_RULE.to_the_end("laptop"))
    cells = STUDIES["paper-rule"].stages[0]("laptop", [])
    assert len({cell.key for cell in cells}) == len(cells)


def test_long_runs_are_shown_step_by_step() -> None:
    record = some_record()
    values = {5_000: 0.16, 10_000: 0.18, 20_000: 0.1, 60_000: 0.02, 120_000: 0.01}
    curve = tuple(
        dataclasses.replace(record.curve[0], step=n, metrics={"valid": v})
        for n, v in values.items()
    )
    spec = run("adding", "rnn_path", "path-sgd-paper", stop_when_solved=True)
    long = dataclasses.replace(record, spec=spec, steps=120_000, curve=curve)
    short = dataclasses.replace(long, steps=60_000)
    filed = [Filed("paper-rule/a.json", r) for r in (long, short)]
    (row,) = PAPER_RULE.curve_table(filed).rows
    assert [entry.text for entry in row[1:7]] == ["100", "0.17", "0.1", "0.02", "0.01", "—"]
    assert row[-1].text == "0.18"

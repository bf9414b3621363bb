"""A table says beside a number where its rate, its seeds or its clip are not those of its
neighbours."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pathsgd_lab.report.footnotes import Footnotes, notes_of
from pathsgd_lab.report.select import best_group
from pathsgd_lab.report.tables import ComparisonRow, Style, comparison
from pathsgd_lab.run.record import Record
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.study import run, uses
from pathsgd_lab.sweep.results import Filed

RECORD = Studies().filed("adding")[0].record


def variant(valid: float | None, optimiser: str = "adam", **changes: Any) -> Record:
    """A record of a run of the adding problem; without a figure it diverged."""
    spec = run("adding", "rnn_path", optimiser, **changes)
    if valid is None:
        return dataclasses.replace(RECORD, spec=spec, outcome="diverged", metrics={}, steps=100)
    return dataclasses.replace(
        RECORD, spec=spec, outcome="finished", metrics={"valid": valid, "test": valid}
    )


def grid(optimiser: str, *valid: float, **changes: Any) -> list[Record]:
    """Runs at rates 1e-4, 1e-3, 1e-2, ..."""
    return [variant(v, optimiser, lr=10.0 ** (i - 4), **changes) for i, v in enumerate(valid)]


@pytest.mark.parametrize(
    ("valid", "note"),
    [
        ((3.0, 1.0, 2.0), ""),
        ((1.0, 2.0, 3.0), "the lowest of the 3 learning rates that were tried"),
        ((3.0, 1.0), "the highest of the 2 learning rates that were tried"),
        ((1.0,), "the only learning rate that was tried"),
    ],
)
def test_a_best_rate_at_the_edge_of_its_grid_is_told(valid: tuple[float, ...], note: str) -> None:
    records = grid("adam", *valid)
    group = best_group(records)
    assert notes_of(group, records, [group]) == ([note] if note else [])


def test_fewer_seeds_and_other_clips_are_told() -> None:
    few = grid("adam", 2.0, 1.0, 2.0)
    many = [r for seed in range(3) for r in grid("sgd", 2.0, 1.0, 2.0, seed=seed, clip=0.0)]
    rows = [best_group(few), best_group(many)]
    assert notes_of(rows[0], few, rows) == [
        "one seed, where another row has 3",
        "gradients bounded by 1",
    ]
    assert notes_of(rows[1], many, rows) == ["gradients not bounded, where other rows' are"]


def test_the_table_has_marks_at_the_numbers_and_notes_below() -> None:
    records = [*grid("adam", 1.0, 2.0), *grid("rmsprop", 1.0, 2.0), *grid("sgd", 2.0, 1.0, 2.0)]
    filed = [Filed("x", record) for record in records]
    rows = [
        ComparisonRow(name, None, uses(optimiser=name))
        for name in ("adam", "rmsprop", "sgd", "path-adam")
    ]
    table = comparison("t", rows, filed, Style(1), "Said first.")
    assert [row[2].text for row in table.rows] == ["1.0 ¹", "1.0 ¹", "1.0", "—"]
    assert table.caption == "Said first. ¹ the lowest of the 2 learning rates that were tried."


def test_rates_tried_in_shorter_runs_count() -> None:
    short, long = grid("adam", 2.0, 1.0, 2.0, steps=10), variant(0.5, lr=1e-3, steps=1000)
    rows = [ComparisonRow("Adam", None, uses(optimiser="adam"))]
    everything = [Filed("x", record) for record in (*short, long)]
    assert comparison("t", rows, everything[-1:], Style(1), tried=everything).caption == ""
    assert "only" in comparison("t", rows, everything[-1:], Style(1)).caption


def test_equal_notes_share_a_mark() -> None:
    notes = Footnotes()
    assert [notes.marks(n) for n in (["a"], ["b", "a"], [], [f"{i}" for i in range(9)])][:3] == [
        "¹",
        "² ¹",
        "",
    ]
    assert notes.marks(["7"]) == "¹⁰"


def test_of_groups_with_runs_that_diverged_the_one_with_fewest_is_best() -> None:
    hot = [variant(None, lr=1e-2, seed=seed) for seed in range(3)]
    warm = [variant(None if seed else 0.5, lr=1e-3, seed=seed) for seed in range(3)]
    cool = [variant(None if seed == 2 else 0.9, lr=1e-4, seed=seed) for seed in range(3)]
    cooler = [variant(None if seed == 2 else 0.8, lr=1e-5, seed=seed) for seed in range(3)]
    assert best_group([*hot, *warm, *cool, *cooler]) == cooler
    assert best_group([*hot, *warm]) == warm

"""The ingredients at length: cells of every problem, and tables of records with known answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from studies.compare.contest import INGREDIENTS, contest, spec_of
from studies.compare.ingredients import ingredient_tables, runs_at
from studies.compare.scores import spikes
from studies.ingredients.study import (
    PROBLEMS,
    RATES,
    SEEDS,
    calm_tables,
    commands_table,
    stage,
)

from pathsgd_lab.run.record import Point, Record
from pathsgd_lab.run.spec import replace_settings
from pathsgd_lab.studies import Studies

STUDIES = Studies()
RECORD = STUDIES.filed("adding")[0].record
ADDING, TEXT, _ = PROBLEMS


def made(name: str, problem: str, outcome: Any, curve: tuple[float, ...], **changes: Any) -> Record:
    """A record of an ingredient whose last evaluation is its test figure."""
    spec = replace_settings(spec_of(INGREDIENTS[name], PROBLEMS[problem], "laptop"), **changes)
    points = tuple(
        Point(50 * i, 0.0, 0.0, float(i), 0.0, 1.0, {"valid": value})
        for i, value in enumerate(curve, 1)
    )
    return dataclasses.replace(
        RECORD, spec=spec, metrics={"test": curve[-1]}, outcome=outcome, curve=points
    )


def test_every_ingredient_has_every_rate_from_both_starts_seed_by_seed() -> None:
    specs = [cell.spec for cell in stage("laptop", [])]
    rows = len(INGREDIENTS) - 1  # the code of the fixed bound on steps is gone
    assert len(set(specs)) == len(specs)
    assert len(specs) == SEEDS["laptop"] * 2 * rows * sum(map(len, RATES.values()))
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)


def test_cells_count_what_is_solved_and_mark_spikes() -> None:
    records = [
        made("Adam, β2 0.999", ADDING, "solved", (0.1, 0.0005)),
        made("Adam, β2 0.999", ADDING, "finished", (0.1, 0.5, 0.02), seed=1),
        made("Adam, β2 0.999", TEXT, "finished", (3.0, 2.0), lr=3e-3, unbalanced=100.0),
    ]
    adding, text = ingredient_tables(records, PROBLEMS)
    assert adding.columns == ("", "balanced, 0.001", "badly scaled, 0.001")
    assert [entry.text for entry in adding.rows[0]] == ["Adam, β2 0.999", "0.0103 (1 of 2) *", "—"]
    assert [entry.text for entry in text.rows[0]] == ["Adam, β2 0.999", "—", "2"]
    (calm,) = calm_tables(records)
    assert [entry.text for entry in calm.rows[0]][2] == "1 of 2, 0.5"
    lost = made("Adam, β2 0.999", ADDING, "diverged", (0.1,), seed=2)
    (calm,) = calm_tables([*records, lost])
    assert [entry.text for entry in calm.rows[0]][2] == "2 of 3, inf"
    assert calm_tables([]) == [] == ingredient_tables([], PROBLEMS)


def test_every_ingredient_is_a_command_of_its_own() -> None:
    commands = [row[1].text for row in commands_table().rows]
    retired = [command for command in commands if "retired code" in command]
    assert len(set(commands)) == len(INGREDIENTS) and len(retired) == 1
    assert all(c.startswith("`pathsgd train adding ") for c in commands if c not in retired)


def test_what_the_page_says_of_the_ingredients_is_what_the_records_say() -> None:
    """studies/ingredients/README.md says it in words."""
    records = [filed.record for filed in STUDIES.filed("ingredients")]
    found = contest(records, INGREDIENTS, {ADDING: PROBLEMS[ADDING]})

    def solved(name: str, start: float, rate: float) -> int:
        group = runs_at(found[name, ADDING], start, rate)
        assert len(group) == 5
        return sum(record.outcome == "solved" for record in group)

    names = [name for name in INGREDIENTS if (name, ADDING) in found]
    unbounded = [
        name
        for name in names
        if "no bound" in name or (name.startswith("Adam") and "bound" not in name)
    ]
    bounded = [name for name in names if name not in unbounded]
    adams = [name for name in names if name.startswith("Adam")]
    assert all(solved(name, 1.0, 1e-3) >= 4 for name in names)
    assert all(solved(name, start, 1e-2) == 0 for name in unbounded for start in (1.0, 100.0))
    assert all(solved(name, 1.0, 1e-2) >= 4 for name in bounded)
    assert all(solved(name, 100.0, rate) < 5 for name in adams for rate in RATES["adding"])
    default = "PathAdam (the default)"
    assert all(
        solved(default, start, rate) == 5 for start in (1.0, 100.0) for rate in (1e-3, 3e-3, 1e-2)
    )
    calm = [
        record for start in (1.0, 100.0) for record in runs_at(found[default, ADDING], start, 1e-2)
    ]
    assert not any(map(spikes, calm))
    at_3e3 = [
        record for start in (1.0, 100.0) for record in runs_at(found[default, ADDING], start, 3e-3)
    ]
    worst = max(point.metrics["valid"] for record in at_3e3 for point in record.curve[1:])
    assert sum(map(spikes, at_3e3)) <= 2 and worst < 4 * at_3e3[0].spec.task.chance

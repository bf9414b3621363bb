"""The comparison: its grid, its scores on records with known answers, its tables."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from studies.compare import scores, tables
from studies.compare.contest import (
    CONTENDERS,
    INGREDIENTS,
    LATTICE,
    LIMIT,
    PROBLEMS,
    contest,
    nearest,
    shifted,
    spec_of,
)
from studies.compare.study import first_stage, ingredients, widening_stage

import pathsgd
from pathsgd_lab.run.record import Point, Record
from pathsgd_lab.run.spec import replace_settings
from pathsgd_lab.run.trainer import Trainer
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.study import rate_of

RECORD = Studies().filed("adding")[0].record
ADDING = "Adding problem"
PROBLEMS_CHANCE = {
    label: spec_of(CONTENDERS["Adam"], problem, "laptop").task.chance
    for label, problem in PROBLEMS.items()
}


def made(
    name: str,
    test: float | None,
    *,
    problem: str = ADDING,
    curve: tuple[float, ...] = (),
    **changes: Any,
) -> Record:
    """A record of a contender with these figures; without a test figure it diverged."""
    spec = replace_settings(spec_of(CONTENDERS[name], PROBLEMS[problem], "laptop"), **changes)
    points = tuple(
        Point(10 * i, 0.0, 0.0, float(i), 0.0, 1.0, {"valid": value})
        for i, value in enumerate(curve, 1)
    )
    metrics = {} if test is None else {"valid": test, "test": test}
    outcome: Any = "diverged" if test is None else "finished"
    return dataclasses.replace(RECORD, spec=spec, metrics=metrics, outcome=outcome, curve=points)


def test_the_lattice_has_steps_of_about_three() -> None:
    assert shifted(1e-3, 1) == pytest.approx(3e-3) and shifted(3e-3, -2) == pytest.approx(3e-4)
    assert all(2.999 <= b / a <= 3.334 for a, b in itertools.pairwise(LATTICE))
    assert shifted(30.0, 99) == LATTICE[-1] and nearest(0.0009) == nearest(1e-3)
    assert all(LATTICE[nearest(c.rate)] == pytest.approx(c.rate) for c in CONTENDERS.values())


def test_the_first_stage_has_every_contender_on_every_problem_from_both_starts() -> None:
    cells = first_stage("laptop", [])
    found = {
        (c.spec.task.name, c.spec.system.name, c.spec.optimiser.name, c.spec.unbalanced)
        for c in cells
    }
    for problem in PROBLEMS.values():
        for contender in CONTENDERS.values():
            if not contender.only:
                for start in (1.0, 100.0):
                    assert (problem.task, problem.system, contender.optimiser, start) in found
    assert {c.spec.system.name for c in cells if c.spec.optimiser.name == "g-sgd"} == {"mlp"}
    assert len(PROBLEMS) >= 8 and len(CONTENDERS) >= 12
    assert {c.spec for c in cells} >= set(
        replace_settings(s, paper_ref=cells[0].spec.paper_ref) for s in ingredients("laptop")
    )
    assert {c.spec.schedule.decay for c in cells if c.spec.optimiser.name == "schedule-free"} == {
        "constant"
    }


def test_the_grid_widens_until_the_best_rate_lies_inside() -> None:
    rates = [1e-3, 3e-3, 1e-2]
    records = [made("Adam", test, lr=rate) for rate, test in zip(rates, (0.3, 0.2, 0.1))]
    missing = {rate_of(c.spec) for c in widening_stage("laptop", records)}
    assert sorted(missing) == pytest.approx([3e-2, 1e-1])
    more = [
        *records,
        made("Adam", 0.2, lr=shifted(1e-2, 1)),
        made("Adam", 0.3, lr=shifted(1e-2, 2)),
    ]
    assert widening_stage("laptop", more) == []


def test_scores_on_records_with_known_answers() -> None:
    chance = RECORD.spec.task.chance
    records = [
        made("Adam", 0.0, curve=(chance, 0.0001)),
        made("PathAdam", 0.0, curve=(0.0001, 0.0)),
        made("Lion", chance / 2, curve=(chance, chance / 2)),
        made("Muon", None, curve=(chance, 3 * chance)),
    ]
    found = contest(records, CONTENDERS)
    goal = scores.targets(found)
    assert goal == {ADDING: pytest.approx(0.05 * chance)}
    time = scores.times(found, goal, "step")
    assert [time[n, ADDING] for n in ("Adam", "PathAdam", "Lion", "Muon")] == [
        20.0,
        10.0,
        math.inf,
        math.inf,
    ]
    assert scores.profile(time, "Adam", 1.99) == 0.0 and scores.profile(time, "Adam", 2.0) == 1.0
    assert (
        scores.profile_score(time, "PathAdam") == 1.0 and scores.profile_score(time, "Lion") == 0.0
    )
    assert scores.profile_score(time, "Adam") == pytest.approx(2 / 3)
    best = scores.best_tests(found)
    assert [scores.excess(r, best[ADDING]) for r in records] == [0.0, 0.0, pytest.approx(0.5), 1.0]
    assert [scores.spikes(r) for r in records] == [False, False, False, True]


def test_a_profile_is_the_mean_height_of_its_steps() -> None:
    time = {("a", "p"): 1.0, ("b", "p"): 2.0, ("a", "q"): 9.0, ("b", "q"): 3.0}
    taus = [1.0 + 3.0 * (i + 0.5) / 3000 for i in range(3000)]
    for name in "ab":
        mean = sum(scores.profile(time, name, tau) for tau in taus) / len(taus)
        assert scores.profile_score(time, name) == pytest.approx(mean, abs=1e-3)


def test_a_rate_that_is_off_is_judged_by_its_worse_side() -> None:
    chance = RECORD.spec.task.chance
    tests = (0.5 * chance, 0.25 * chance, 0.0, 0.75 * chance, None)
    records = [made("Adam", test, lr=LATTICE[4 + i]) for i, test in enumerate(tests)]
    found = contest(records, CONTENDERS)
    assert scores.off_by(found, "Adam", 1) == (pytest.approx(0.75), 1)
    assert scores.off_by(found, "Adam", 2) == (1.0, 1)
    assert scores.off_by(contest(records[:4], CONTENDERS), "Adam", 2)[1] == 0
    assert (
        scores.fixed_place(found, "Adam", scores.best_tests(found))
        == 6
        == scores.best_place(records)
    )


def test_one_rate_serves_all_problems() -> None:
    mlp = "MLP on MNIST"
    records = [made("Adam", 0.0, lr=1e-3), made("Adam", 0.1, lr=3e-3),
               made("Adam", 50.0, lr=1e-3, problem=mlp),
               made("Adam", 1.0, lr=3e-3, problem=mlp), made("Adam", 0.0, lr=1e-2)]  # fmt: skip
    found = contest(records, CONTENDERS)
    best = scores.best_tests(found)
    assert LATTICE[scores.fixed_place(found, "Adam", best) or 0] == pytest.approx(1e-3)
    assert scores.fixed_place(found, "Lion", best) is None


def test_every_table_is_made_of_few_records_and_of_none() -> None:
    few = [
        made("PathAdam", 0.1, curve=(0.2, 0.1)),
        made("Adam", 0.05, curve=(0.1, 0.05), unbalanced=100.0),
    ]
    for records in ([], few):
        for make in tables.TABLES.values():
            for table in make(records):
                assert all(len(row) == len(table.columns) for row in table.rows)
        assert tables.profile_figure(records).x_label == "τ"
    assert [row[1].text for row in tables.best_table(few, 1.0).rows][:2] == ["—", "—"]
    assert tables.best_table(few, 1.0).rows[0][4].text.startswith("0.1 ")


def test_the_profile_s_lines_rise_and_have_colours_of_their_own() -> None:
    records = [
        made(name, 0.0, curve=(0.2,) * i + (0.0,))
        for i, name in enumerate(CONTENDERS)
        if name != "G-SGD"
    ]
    series = tables.profile_figure(records).series
    assert len(series) == 8 and {"PathAdam", "PathSGD, momentum"} <= {line.name for line in series}
    assert all(list(line.y) == sorted(line.y) for line in series) and series[0].y[0] == 1.0


def test_every_ingredient_changes_something() -> None:
    specs = {
        name: spec_of(contender, PROBLEMS[ADDING], "laptop")
        for name, contender in INGREDIENTS.items()
    }
    assert len(set(specs.values())) == len(specs)


@pytest.mark.parametrize("name", ["PathAdam", "PathSGD, momentum"])
def test_the_path_optimisers_are_compared_as_they_come(name: str) -> None:
    """Apart from the bound on growth rates, which the contest states by itself."""
    spec = replace_settings(spec_of(CONTENDERS[name], PROBLEMS[ADDING], "smoke"), lr=1e-2)
    trainer = Trainer(spec, spec.task.prepare())
    model = copy.deepcopy(trainer.model)
    if name == "PathAdam":
        optimiser: torch.optim.Optimizer = pathsgd.PathAdam(model, 1e-2, growth=LIMIT)
    else:
        optimiser = pathsgd.PathSGD(model, 1e-2, momentum=0.9, growth=LIMIT)
    for _ in range(5):
        batch = trainer.stream.next()
        trainer.stepper.step(batch, None)
        optimiser.zero_grad()
        spec.task.loss(model(batch.inputs)[0], batch.targets).backward()
        optimiser.step()
    for p, q in zip(model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_heat_maps_and_six_lines_say_what_the_tables_say() -> None:
    """Two contenders on every problem, one far from the best, one the best; one rate is missing."""
    records = [
        made(
            name,
            test * PROBLEMS_CHANCE[problem],
            problem=problem,
            lr=rate,
            curve=(0.0,),
            unbalanced=start,
        )
        for problem in PROBLEMS
        for start in (1.0, 100.0)
        for name, rate, test in (
            ("PathAdam", 3e-3, 0.5),
            ("PathAdam", 3e-2, 0.1),
            ("Adam", 1e-3, 0.2),
        )
    ]
    balanced, scaled = tables.rates_heat(records)
    assert balanced.columns == ("usual rate", "× 10") and next(iter(balanced.rows)) == "PathAdam"
    assert (
        balanced.rows["PathAdam"] == pytest.approx((100 * 0.4 / 0.9, 0.0))
        and balanced.rows["Adam"][1] is None
    )
    assert scaled.rows == balanced.rows
    table = tables.buys_table(records)
    rows = {row[0].text: [entry.text for entry in row[1:]] for row in table.rows}
    assert table.columns == ("", "PathAdam", "Adam", "best rival in this line") and len(rows) == 6
    assert rows["mean excess in %, balanced starts"] == ["0.0", "11.1", "11.1 (Adam)"]
    assert rows["runs with a spike, both starts"] == ["0 of 16", "0 of 16", "0 of 16 (Adam)"]

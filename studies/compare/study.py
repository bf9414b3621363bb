"""The path optimisers against what people use, on small ReLU nets: which runs, and in which order.

Beyond the paper.  Every contender trains every problem at learning rates a factor of about three
apart, from the start as drawn and from the same function badly scaled (each unit by a factor
between 1/100 and 100).  Nothing but the rate is tuned; gradients are clipped at 1; rates fall
linearly to zero (schedule-free AdamW: constant, as its authors say).

    stage 1    each contender's usual rate and three times that, from both starts, and a third
               of it from balanced ones; the ingredients of PathAdam, one by one; ten times
               the usual rate, from both starts; ways to keep a net without recurrence alive;
               a tenth of the usual rate, from balanced starts
    stage 2, 3 further rates until the best one is two steps inside the grid, balanced starts
    stage 4    stage 1 on further seeds, seed by seed
    stage 5    each contender's one rate for all problems from badly scaled starts, if missing
    stage 6, 7 further rates from badly scaled starts until the best one has a neighbour on
               either side, on every seed

Cells are ordered so that a run that is cut short has fewer rates of all contenders, not all rates
of some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from studies.compare import scores, tables
from studies.compare.contest import (
    BADLY_SCALED,
    CONTENDERS,
    INGREDIENT_PROBLEMS,
    INGREDIENT_RATES,
    INGREDIENTS,
    LATTICE,
    PROBLEMS,
    SEEDS,
    SURVIVAL,
    SURVIVAL_PROBLEM,
    SURVIVAL_RATES,
    can_run,
    contest,
    shifted,
    spec_of,
)
from studies.compare.tables import section

from pathsgd_lab.report.model import TableData
from pathsgd_lab.report.pictures import heat_picture, line_picture
from pathsgd_lab.report.select import best_group, groups
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, spec_hash
from pathsgd_lab.studies.pages import titled
from pathsgd_lab.studies.study import Scale, Study, cells, over, rate_of, seed_by_seed
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "beyond the paper: other optimisers"
INSIDE = 2
"""So many steps of the grid lie on either side of the best rate."""


def pairs(scale: Scale) -> Iterator[RunSpec]:
    """Every contender on each of its problems, problem by problem; smoke: one problem of rivals."""
    for number, (name, problem) in enumerate(PROBLEMS.items()):
        chosen = (
            list(CONTENDERS.values())
            if number == 0 or scale != "smoke"
            else list(CONTENDERS.values())[:2]
        )
        for contender in chosen:
            if not contender.only or name in contender.only:
                yield spec_of(contender, problem, scale)


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Five balanced rates, the upper three also badly scaled, and the ingredients."""
    both = (1.0, BADLY_SCALED)
    usual = _shifted(scale, 0, both)
    if scale == "smoke":
        return cells(dict.fromkeys([*usual, *ingredients(scale)]), PAPER_REF)
    near = [*_shifted(scale, 1, both), *_shifted(scale, -1, (1.0,))]
    far = [*_shifted(scale, 2, both), *survival(scale), *_shifted(scale, -2, (1.0,))]
    return cells(dict.fromkeys([*usual, *near, *ingredients(scale), *far]), PAPER_REF)


def _shifted(scale: Scale, shift: int, starts: Sequence[float]) -> list[RunSpec]:
    """Every pair at a rate so many steps of the grid from its usual one, start by start."""
    rated = [s for spec in pairs(scale) for s in over(spec, lr=[shifted(rate_of(spec), shift)])]
    return [s for start in starts for spec in rated for s in over(spec, unbalanced=[start])]


def widening_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Missing rates within ``INSIDE`` steps of the best one so far; balanced starts, one seed."""
    found = groups([record for record in records if record.spec.seed == 0], without=("lr", "seed"))
    wanted = []
    for spec in pairs(scale) if scale != "smoke" else ():
        (method,) = groups([spec], without=("lr", "seed"))
        if method in found:
            best = rate_of(best_group(found[method])[0].spec)
            wanted += over(spec, lr=[shifted(best, step) for step in range(-INSIDE, INSIDE + 1)])
    known = {record.hash for record in records}
    return cells([spec for spec in wanted if spec_hash(spec) not in known], PAPER_REF)


def ingredients(scale: Scale) -> list[RunSpec]:
    """Every ingredient at every rate, from both starts."""
    specs = []
    for rate in INGREDIENT_RATES if scale != "smoke" else INGREDIENT_RATES[:1]:
        for name in INGREDIENT_PROBLEMS if scale != "smoke" else INGREDIENT_PROBLEMS[:1]:
            for start in (1.0, BADLY_SCALED):
                chosen = [
                    spec_of(contender, PROBLEMS[name], scale) for contender in INGREDIENTS.values()
                ]
                specs += [
                    s
                    for spec in filter(can_run, chosen)
                    for s in over(spec, lr=[rate], unbalanced=[start])
                ]
    return specs


def survival(scale: Scale) -> list[RunSpec]:
    """What might keep a net without recurrence alive, at high rates."""
    specs = [
        spec_of(contender, PROBLEMS[SURVIVAL_PROBLEM], scale) for contender in SURVIVAL.values()
    ]
    return [s for rate in reversed(SURVIVAL_RATES) for spec in specs for s in over(spec, lr=[rate])]


def seeds_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """What the first stage ran, on further seeds."""
    specs = [cell.spec for cell in first_stage(scale, records)]
    return cells(seed_by_seed(specs, range(1, SEEDS[scale])), PAPER_REF)


def one_rate_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The single rate best from balanced starts, run from badly scaled ones on every seed."""
    everything = contest(records, CONTENDERS)
    balanced, best = scores.at_start(everything, 1.0), scores.best_tests(everything)
    specs = []
    for name, label in everything:
        place = scores.fixed_place(balanced, name, best)
        if place is not None:
            spec = spec_of(CONTENDERS[name], PROBLEMS[label], scale)
            specs += over(
                spec, lr=[LATTICE[place]], unbalanced=[BADLY_SCALED], seed=range(SEEDS[scale])
            )
    return cells(specs, PAPER_REF)


def scaled_widening_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The neighbours of the best rate so far from badly scaled starts, on every seed."""
    found = scores.at_start(contest(records, CONTENDERS), BADLY_SCALED) if scale != "smoke" else {}
    specs = []
    for (name, label), group in found.items():
        best = rate_of(best_group(group)[0].spec)
        near = [shifted(best, step) for step in (-1, 0, 1)]
        spec = spec_of(CONTENDERS[name], PROBLEMS[label], scale)
        specs += over(spec, lr=near, unbalanced=[BADLY_SCALED], seed=range(SEEDS[scale]))
    return cells(specs, PAPER_REF)


def _table(make: Callable[[Sequence[Record]], list[TableData]], filed: Sequence[Filed]) -> str:
    return titled(make([f.record for f in filed]))


def rates_picture(filed: Sequence[Filed], path: Path) -> None:
    """Heat maps of learning rates."""
    label = "mean excess in per cent: 0 is the best run of all, 100 chance"
    heat_picture(tables.rates_heat([f.record for f in filed]), path, label)


def profile_picture(filed: Sequence[Filed], path: Path) -> None:
    """Time to the target."""
    line_picture(tables.profile_figure([f.record for f in filed]), path)


STUDY = Study(
    name="compare",
    title="The path optimisers against what people use",
    paper_ref=PAPER_REF,
    duration={
        "paper": "weeks on two cores",
        "laptop": "two hours of one core",
        "smoke": "a minute",
    },
    stages=(
        first_stage,
        widening_stage,
        widening_stage,
        seeds_stage,
        one_rate_stage,
        scaled_widening_stage,
        scaled_widening_stage,
    ),
    section=section,
    tables={f"compare-{name}": partial(_table, make) for name, make in tables.TABLES.items()},
    pictures={"compare-rates.svg": rates_picture, "compare-profile.svg": profile_picture},
)

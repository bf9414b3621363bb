"""What does the work, at length: every ingredient of PathAdam on the adding problem with 100 units.

Beyond the paper.  The comparison has the same rows on nets that train for seconds.  Here every row has the steps that
it takes to solve the problem, four rates, both starts and five seeds.  Cells are ordered seed by seed, so that a run
that is cut short has fewer seeds of everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from pathsgd.lab.experiments.base import Experiment, Scale, cells, over, seed_by_seed
from pathsgd.lab.experiments.compare_ingredients import ingredient_tables
from pathsgd.lab.experiments.contest import BADLY_SCALED, INGREDIENT_RATES, INGREDIENTS, Problem, spec_of
from pathsgd.lab.report.model import Section
from pathsgd.lab.report.tables import sources
from pathsgd.lab.run.record import Record
from pathsgd.lab.sweep.cells import RunCell
from pathsgd.lab.sweep.results import Filed

PAPER_REF = "beyond the paper: what does the work"
_START = {"others_range": 0.3, "mean_bias": True}
_LENGTHY = {"length": 100, "steps": 3000, "eval_every": 50, "valid_size": 1000, **_START}
PROBLEMS = {
    "adding problem, T = 100, 100 units, 3000 steps": Problem("adding", "rnn_path", {
        "paper": _LENGTHY,
        "laptop": _LENGTHY,
        "smoke": {"length": 6, "hidden": 4, "steps": 4, "eval_every": 2, "valid_size": 5, "test_size": 5, **_START}}),
}  # fmt: skip
SEEDS: dict[Scale, int] = {"paper": 5, "laptop": 5, "smoke": 1}


def stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Every ingredient at every rate from both starts, seed by seed."""
    rates = INGREDIENT_RATES if scale != "smoke" else INGREDIENT_RATES[:1]
    kinds = [spec_of(contender, problem, scale) for problem in PROBLEMS.values() for contender in INGREDIENTS.values()]
    specs = [s for rate in rates for kind in kinds for s in over(kind, lr=[rate], unbalanced=[1.0, BADLY_SCALED])]
    return cells(seed_by_seed(specs, range(SEEDS[scale])), PAPER_REF)


def section(filed: Sequence[Filed]) -> Section:
    """One table, one row per ingredient."""
    return Section(
        "ingredients",
        "What does the work",
        "The adding problem from a start that is balanced or badly scaled (each unit by a factor between 1/100 and "
        "100), the same clip and the same rates for everybody. Solved: a test error below 0.001.",
        tables=tuple(ingredient_tables([f.record for f in filed], PROBLEMS)),
        sources=sources(filed),
    )


INGREDIENTS_AT_LENGTH = Experiment(
    name="ingredients",
    title="What does the work, ingredient by ingredient",
    paper_ref=PAPER_REF,
    duration={"paper": "an hour of one core", "laptop": "an hour of one core", "smoke": "seconds"},
    stages=(stage,),
    section=section,
)

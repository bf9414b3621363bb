"""The comparison at budgets several times as long: usual rates, one seed.  It was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from studies.compare.contest import BADLY_SCALED, CONTENDERS, PROBLEMS, spec_of

from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.sweeps import method_table, sweep_section
from pathsgd_lab.run.spec import RunSpec, replace_settings
from pathsgd_lab.studies.pages import NOT_ON_A_PAGE
from pathsgd_lab.studies.study import SCALES, Scale, Study, cells, over
from pathsgd_lab.sweep.cells import RunCell

STEPS = {
    "MLP on MNIST": 2000,
    "CNN 2c2d on MNIST": 1500,
    "Autoencoder on MNIST": 1500,
    "Adding problem": 3000,
    "Sequential MNIST": 2000,
    "Permuted MNIST": 2000,
    "PTB characters": 1500,
    "CTRNN on decisions": 1500,
}
EVALUATIONS = {"Adding problem": 30}
BOTH_STARTS = ("MLP on MNIST", "CNN 2c2d on MNIST", "Autoencoder on MNIST", "Adding problem")
RATES = {"PathAdam": 1e-3}
"""What was usual at the time, where it is not today."""
LEFT_OUT = ("PathAdam, capped by γ", "Muon in path coordinates", "SOAP in path coordinates")


def runs() -> list[RunSpec]:
    """Every contender on every problem that it is for."""
    specs = []
    for label, steps in STEPS.items():
        starts = (1.0, BADLY_SCALED) if label in BOTH_STARTS else (1.0,)
        longer = {"steps": steps, "eval_every": steps // EVALUATIONS.get(label, 20)}
        for name, contender in CONTENDERS.items():
            if name in LEFT_OUT or (contender.only and label not in contender.only):
                continue
            spec = replace_settings(spec_of(contender, PROBLEMS[label], "laptop"), **longer)
            specs += over(spec, lr=(RATES.get(name, contender.rate),), unbalanced=starts)
    return specs


def stage(scale: Scale, records: Sequence[Any]) -> list[RunCell]:
    """All of it; there is one size only."""
    return cells(runs(), "")


STUDY = Study(
    "compare-longer",
    "The comparison at longer budgets",
    section=partial(sweep_section, "compare-longer"),
    stages=(stage,),
    duration=dict.fromkeys(SCALES, "three hours of one core"),
    tables={"runs-compare-longer": lambda filed: markdown(method_table(filed), NOT_ON_A_PAGE)},
)

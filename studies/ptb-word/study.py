"""Figure 3, curves: words, Path-SGD with and without kappa2 against SGD.

The paper: 200 units, windows of 20, batches of 32, all weights from U[-0.1, 0.1], step sizes by a
grid search.  It shows training and test error over epochs, as curves without numbers.  We add Adam
and PathAdam.  Every run notes ||kappa2|| / ||kappa1|| at each evaluation, for the ratio after
training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pathsgd_lab.report.model import Entry, FigureData, Section, TableData
from pathsgd_lab.report.select import best_group
from pathsgd_lab.report.tables import ComparisonRow, Style, comparison, curves, sources
from pathsgd_lab.run.optimisers import OPTIMISERS
from pathsgd_lab.run.record import Point, Record
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.studies.study import (
    LITERAL,
    Scale,
    Study,
    at_best_rate,
    cells,
    over,
    run,
    seed_by_seed,
    uses,
)
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

PAPER_REF = "Figure 3, curves"

METHODS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "path-sgd": LITERAL,
    "path-sgd-both": LITERAL,
    "adam": {},
    "path-adam-relative": {},
    "path-adam": {"refresh_every": 10},
}
RATES: dict[str, tuple[float, ...]] = {
    "sgd": (3.0, 1.0, 0.3, 0.1, 0.03),
    "path-sgd": (3e3, 1e3, 3e2, 1e2),
    "path-sgd-both": (3e3, 1e3, 3e2, 1e2),
    "adam": (1e-2, 3e-3, 1e-3, 3e-4),
    "path-adam-relative": (3e-4, 1e-4, 3e-5),
    "path-adam": (1e-2, 3e-3, 1e-3, 3e-4),
}
EQUAL: dict[str, dict[str, Any]] = {
    "sgd": {},
    "path-sgd": {**LITERAL, "unit": "sgd", "clip": 1.0},
    "path-sgd-both": {**LITERAL, "unit": "sgd", "clip": 1.0},
}
"""The paper's three curves on a par: one unit, one bound on the length of the direction, one grid
of rates, as many steps and seeds."""
EQUAL_RATES = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"grid": {"epochs": 2.0}, "final": {"epochs": 40.0}, "seeds": 3, "eval_every": 1452},
    "laptop": {"grid": {"epochs": 0.25}, "final": {"epochs": 1.0}, "seeds": 3, "eval_every": 363},
    "smoke": {"grid": {"steps": 4}, "final": {"steps": 8}, "seeds": 2, "eval_every": 4, "hidden": 6,
              "limit": 400, "window": 5, "batch_size": 4},
}  # fmt: skip


def _common(scale: Scale, budget: str) -> dict[str, Any]:
    size = {
        name: value
        for name, value in SIZES[scale].items()
        if name not in ("grid", "final", "seeds")
    }
    return {**size, **SIZES[scale][budget], "eval_splits": ("valid", "test"), "geometry": True}


def grid(scale: Scale) -> list[RunSpec]:
    """Every method at every rate, for a short while."""
    specs = []
    for optimiser, settings in METHODS.items():
        specs += over(
            run("ptb_word", "rnn_path", optimiser, **_common(scale, "grid"), **settings),
            lr=RATES[optimiser],
        )
    return specs


def equal(scale: Scale) -> list[RunSpec]:
    """SGD and Path-SGD with 1 and 2 terms in one unit; the same bound, rates and steps."""
    methods = [
        run("ptb_word", "rnn_path", optimiser, **_common(scale, "final"), **settings)
        for optimiser, settings in EQUAL.items()
    ]
    return [spec for method in methods for spec in over(method, lr=EQUAL_RATES)]


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The grid of rates."""
    return cells(grid(scale), PAPER_REF)


def second_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Each method at its best rate and the next lower one, for longer."""
    return cells(
        at_best_rate(grid(scale), records, next_lower=True, **SIZES[scale]["final"]), PAPER_REF
    )


def equal_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The three curves on a par, at every rate."""
    return cells(equal(scale), PAPER_REF)


def equal_seeds_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The three curves on a par, each at its best rate, on further seeds."""
    best = at_best_rate(equal(scale), records)
    return cells(seed_by_seed(best, range(1, SIZES[scale]["seeds"])), PAPER_REF)


def longest(filed: Sequence[Filed]) -> list[Filed]:
    """The runs with the largest budget there is: the grid's are only for choosing rates."""
    budgets = [(f.record.spec.budget.epochs or 0.0, f.record.spec.budget.steps or 0) for f in filed]
    return [f for f, budget in zip(filed, budgets, strict=True) if budget == max(budgets)]


def rows() -> list[ComparisonRow]:
    """A row per method; the paper prints no numbers."""
    words = {
        "sgd": "highest curve",
        "path-sgd": "well below SGD",
        "path-sgd-both": "as the first term alone",
    }
    titles = {"path-sgd": "Path-SGD, kappa1", "path-sgd-both": "Path-SGD, kappa1 + kappa2"}
    found = []
    for name in METHODS:
        title = titles.get(name, OPTIMISERS[name].title)
        if name in titles:
            bounded = f"{title}, in SGD's unit, direction bounded"
            found.append(ComparisonRow(bounded, words[name], in_sgd_unit(name)))
            title = f"{title}, as printed"
        found.append(ComparisonRow(title, words.get(name), in_sgd_unit(name, wanted=False)))
    return found


def in_sgd_unit(optimiser: str, *, wanted: bool = True) -> Callable[[RunSpec], bool]:
    """Runs of an optimiser whose first step is scaled to SGD's length, or those without that."""
    of_optimiser = uses("rnn_path", optimiser)
    return lambda spec: (
        of_optimiser(spec) and (getattr(spec.optimiser, "unit", "") == "sgd") is wanted
    )


def section(filed: Sequence[Filed]) -> Section:
    """Table of test perplexity, the two panels of the figure, and the ratios after training."""
    final = longest(filed)
    figures = (
        curves(
            "Training",
            rows(),
            final,
            x="epoch",
            y=lambda p: p.train_loss,
            y_label="loss in nats",
            log_y=True,
        ),
        curves(
            "Test",
            rows(),
            final,
            x="epoch",
            y=lambda p: p.metrics.get("test", math.nan),
            y_label="perplexity",
            log_y=True,
        ),
        ratio_figure(final),
    )
    return Section(
        "ptb-word",
        "Word-level language model, with and without the second term",
        "A plain ReLU net with 200 units on the Penn Treebank. Each method at the learning rate "
        "that was best on the validation text after a short run, and at the next lower one; the "
        "better of the two counts.",
        tables=(
            comparison(
                "Test perplexity, at the best validation", rows(), final, Style(1), tried=filed
            ),
            curve_table(final),
            ratio_table(final),
        ),
        figures=figures,
        sources=sources(filed),
    )


def curve_table(filed: Sequence[Filed]) -> TableData:
    """The test curve in numbers: what a run has at the end is not always its best."""
    chosen = {row.label: [f.record for f in filed if row.wanted(f.record.spec)] for row in rows()}
    shown = {label: best_group(records)[0] for label, records in chosen.items() if records}
    epochs = sorted({round(point.epoch, 2) for record in shown.values() for point in record.curve})
    lines = []
    for label, record in shown.items():
        by_epoch = {round(point.epoch, 2): f"{point.metrics['test']:.0f}" for point in record.curve}
        lines.append(
            (Entry(label), *(Entry(by_epoch.get(epoch, "—"), (record.hash,)) for epoch in epochs))
        )
    columns = ("system", *(f"epoch {epoch:g}" for epoch in epochs))
    return TableData("Test perplexity in the course of the run (first seed)", columns, tuple(lines))


def ratio_figure(filed: Sequence[Filed]) -> FigureData:
    """||kappa2|| / ||kappa1|| in the course of training."""
    title = "Size of kappa2 beside kappa1 in the course of training (exact)"
    return curves(
        title, rows(), filed, x="epoch", y=_ratio, y_label="||kappa2|| / ||kappa1||", log_y=True
    )


def _test(point: Point) -> float:
    return point.metrics.get("test", math.nan)


def _ratio(point: Any) -> float:
    return float(point.geometry.get("kappa2_over_kappa1", float("nan")))


def ratio_table(filed: Sequence[Filed]) -> TableData:
    """The ratio at the first and the last evaluation."""
    lines = []
    for row in rows():
        records = [f.record for f in filed if row.wanted(f.record.spec) and f.record.curve]
        if not records:
            continue
        record = best_group(records)[0]
        first, last = record.curve[0], record.curve[-1]
        keys = (record.hash,)
        lines.append(
            (
                Entry(row.label),
                Entry(f"{_ratio(first):.4g} (epoch {first.epoch:.2g})", keys),
                Entry(f"{_ratio(last):.4g} (epoch {last.epoch:.2g})", keys),
            )
        )
    columns = ("system", "early in training", "at the end")
    return TableData("||kappa2|| / ||kappa1|| of W_rec, exact convention", columns, tuple(lines))


STUDY = Study(
    name="ptb-word",
    title="Word-level language model, SGD and Path-SGD with one and two terms",
    paper_ref=PAPER_REF,
    duration={"paper": "a day on two cores", "laptop": "two hours of one core", "smoke": "seconds"},
    stages=(first_stage, second_stage, equal_stage, equal_seeds_stage),
    section=section,
)

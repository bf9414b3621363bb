"""Table 2, last column: sequential MNIST, 784 pixels one by one, 100 units.

The paper: identity start, other weights from U[-0.01, 0.01], rates 1e-2, 1e-3 and 1e-4.  The
figures it prints for np-RNN, uRNN and LSTM are those of their authors.  Here the plain nets start
their other weights from U[-0.3, 0.3] and take batches of 32, which is better for all of them within
an hour; ``long`` goes on with RNN-Path for three and five times as many epochs, and with its
nearest rival for five times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pathsgd_lab.report.model import Section
from pathsgd_lab.report.tables import ComparisonRow, Style, comparison, curves, sources
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, replace_settings
from pathsgd_lab.studies.study import (
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

PAPER_REF = "Table 2, sMNIST"
START: dict[str, Any] = {"others_range": 0.3, "batch_size": 32}
# Label, system, optimiser, settings, rates, the paper's error in per cent.
SYSTEMS: tuple[tuple[str, str, str, dict[str, Any], tuple[float, ...], float | None], ...] = (
    ("IRNN, SGD", "irnn", "sgd", START, (1e-2, 1e-3), 7.1),
    ("IRNN, Adam", "irnn", "adam", START, (3e-4, 1e-4, 3e-5), None),
    ("np-RNN", "np_rnn", "rmsprop", {"batch_size": 32}, (3e-4, 1e-4, 3e-5), 3.1),
    (
        "RNN-Path, PathAdam",
        "rnn_path",
        "path-adam-relative",
        {**START, "beta2": 0.999},
        (5e-4, 1.5e-4, 5e-5),
        3.1,
    ),
    (
        "RNN-Path, paper's Path-Adam",
        "rnn_path",
        "path-adam-paper",
        {**START, "refresh_every": 10},
        (3e-4, 1e-4),
        3.1,
    ),
)
GATED: tuple[tuple[str, str, str, dict[str, Any], tuple[float, ...], float | None], ...] = (
    ("LSTM", "lstm", "adam", {"batch_size": 32}, (1e-3,), 1.8),
    ("uRNN", "urnn", "rmsprop", {"batch_size": 32, "hidden": 512}, (1e-3,), 4.9),
)
"""Batches as the plain nets have; each step takes many times as long as theirs, so that there are
fewer epochs."""
LETTER: dict[str, Any] = {"batch_size": 16, "decay": "constant"}
"""The paper's protocol: its start, its rates, a constant rate."""
RULE: dict[str, Any] = {**LETTER, "initial_state": True, "clip": 0.03}
SHORT_STEPS: dict[str, Any] = {
    **LETTER,
    "initial_state": True,
    "clip": 3e-6,
    "lr": 1000.0,
    "refresh_every": 10,
}
"""Every step as long as the bound allows, 0.003, and kappa ten steps old: what learns the adding
problem at T = 750."""
FAIR_RATES = (2.5e-4, 1e-4)
LONG_LABELS = {
    "path-adam-relative": "RNN-Path, PathAdam, for longer",
    "adam": "IRNN, Adam, for longer",
}
SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"grid": {"epochs": 5.0}, "final": {"epochs": 200.0}, "gated": {"epochs": 200.0},
              "seeds": 3,
              "long": {"path-adam-relative": ((600.0, 1.5e-4),), "adam": ((600.0, 1e-4),)},
              "eval_every": 1719},
    "laptop": {"grid": {"epochs": 1.0}, "final": {"epochs": 20.0}, "gated": {"epochs": 3.0},
               "seeds": 3,
               "long": {"path-adam-relative": ((60.0, 1.5e-4), (100.0, 1.5e-4), (100.0, 2.5e-4)),
                        "adam": ((100.0, 1e-4),)},
               "eval_every": 1719},
    "smoke": {"grid": {"steps": 4}, "final": {"steps": 6}, "gated": {"steps": 4}, "seeds": 2,
              "long": {"path-adam-relative": ((3.0, 1.5e-4),), "adam": ((3.0, 1e-4),)},
              "eval_every": 4, "hidden": 5, "subsample": 7, "valid_size": 10, "limit": 40},
}  # fmt: skip


def _specs(scale: Scale, systems: Sequence[Any], budget: str) -> list[RunSpec]:
    size = {
        k: v
        for k, v in SIZES[scale].items()
        if k not in ("grid", "final", "gated", "seeds", "long")
    }
    specs = []
    for _, system, optimiser, settings, rates, _ in systems:
        merged = {**size, **SIZES[scale][budget], "decay": "linear", **settings}
        if scale == "smoke":
            merged["batch_size"] = 5
        specs += over(run("smnist", system, optimiser, **merged), lr=rates)
    return specs


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The plain nets briefly at every rate; the LSTM, slow without fused gates, only once."""
    return cells([*_specs(scale, SYSTEMS, "grid"), *_specs(scale, GATED, "gated")], PAPER_REF)


def second_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Each plain net for longer at its best rate and, as 1 epoch tells little, the next lower."""
    return cells(_finals(scale, records), PAPER_REF)


def third_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The better of each plain net's longer runs on further seeds, seed by seed."""
    best = at_best_rate(_finals(scale, records), records)
    return cells(seed_by_seed(best, range(1, SIZES[scale]["seeds"])), PAPER_REF)


def _finals(scale: Scale, records: Sequence[Record]) -> list[RunSpec]:
    return at_best_rate(
        _specs(scale, SYSTEMS, "grid"), records, next_lower=True, **SIZES[scale]["final"]
    )


def long_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """RNN-Path and its nearest rival for longer than the rest."""
    by_optimiser = {spec.optimiser.name: spec for spec in _specs(scale, SYSTEMS, "grid")}
    longer = [
        replace_settings(by_optimiser[optimiser], steps=None, epochs=epochs, lr=rate)
        for optimiser, runs in SIZES[scale]["long"].items()
        for epochs, rate in runs
    ]
    return cells(longer, PAPER_REF)


def letter_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The paper's own protocol: IRNN with SGD and RNN-Path with the paper's rule, same rates."""
    size = {
        k: v
        for k, v in SIZES[scale].items()
        if k not in ("grid", "final", "gated", "seeds", "long")
    }
    small = {"batch_size": 5} if scale == "smoke" else {}
    base = {**size, **SIZES[scale]["final"]}
    control = run("smnist", "irnn", "sgd", **{**base, **LETTER, **small})
    rule = run("smnist", "rnn_path", "path-sgd-paper", **{**base, **RULE, **small})
    short = run("smnist", "rnn_path", "path-sgd-paper", **{**base, **SHORT_STEPS, **small})
    return cells(
        [*over(control, lr=(1e-2, 1e-3, 1e-4)), *over(rule, lr=(1.0, 1e-1, 1e-2)), short], PAPER_REF
    )


def fair_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """RNN-Path and its nearest rival for as long, at the same two rates, on as many seeds."""
    by_optimiser = {spec.optimiser.name: spec for spec in _specs(scale, SYSTEMS, "grid")}
    epochs = SIZES[scale]["long"]["adam"][0][0]
    longer = [
        replace_settings(by_optimiser[name], steps=None, epochs=epochs) for name in LONG_LABELS
    ]
    specs = [spec for one in longer for spec in over(one, lr=FAIR_RATES)]
    return cells(seed_by_seed(specs, range(SIZES[scale]["seeds"])), PAPER_REF)


def rows() -> list[ComparisonRow]:
    """The paper's rows, and the long runs'."""
    known = [
        ComparisonRow(label, paper, _short(uses(system, optimiser)))
        for label, system, optimiser, _, _, paper in (*SYSTEMS, *GATED)
    ]
    papers = {optimiser: paper for _, _, optimiser, _, _, paper in SYSTEMS}
    letter = ComparisonRow("RNN-Path, the paper's rule", 3.1, uses("rnn_path", "path-sgd-paper"))
    return [
        *known,
        letter,
        *(
            ComparisonRow(label, papers[name], _long(uses(optimiser=name)))
            for name, label in LONG_LABELS.items()
        ),
    ]


def _short(wanted: Callable[[RunSpec], bool]) -> Callable[[RunSpec], bool]:
    return lambda spec: wanted(spec) and not _is_long(spec)


def _long(wanted: Callable[[RunSpec], bool]) -> Callable[[RunSpec], bool]:
    return lambda spec: wanted(spec) and _is_long(spec)


def _is_long(spec: RunSpec) -> bool:
    runs = [size["long"].get(spec.optimiser.name, ()) for size in SIZES.values()]
    return any(spec.budget.epochs == epochs for some in runs for epochs, _ in some)


def section(filed: Sequence[Filed]) -> Section:
    """Test error, and validation error against time."""
    return Section(
        "smnist",
        "Sequential MNIST",
        "Error in per cent on the 10,000 test images, read one pixel at a time by 100 units.",
        tables=(comparison("Test error in per cent", rows(), filed, Style(1)),),
        figures=(
            curves("Validation error", rows(), filed, y_label="error in per cent", log_y=True),
        ),
        sources=sources(filed),
    )


STUDY = Study(
    name="smnist",
    title="Sequential MNIST",
    paper_ref=PAPER_REF,
    duration={
        "paper": "some days on two cores",
        "laptop": "four hours on two cores",
        "smoke": "seconds",
    },
    stages=(first_stage, second_stage, long_stage, letter_stage, fair_stage, third_stage),
    section=section,
)

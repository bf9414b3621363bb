"""Table 2, last column: sequential MNIST, 784 pixels one by one, 100 units.

The paper: identity start, other weights from U[-0.01, 0.01], rates 1e-2, 1e-3 and 1e-4.  The figures it prints for
np-RNN, uRNN and LSTM are those of their authors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathsgd.lab.record import Record
from pathsgd.lab.report.model import Section
from pathsgd.lab.report.select import Filed
from pathsgd.lab.report.tables import Row, Style, comparison, curves, sources
from pathsgd.lab.spec import RunSpec
from pathsgd.lab.specs.base import Experiment, Scale, at_best_rate, cells, over, run
from pathsgd.lab.sweep import RunCell

PAPER_REF = "Table 2, sMNIST"
# Label, system, optimiser, settings, rates, the paper's error in per cent.
SYSTEMS: tuple[tuple[str, str, str, dict[str, Any], tuple[float, ...], float | None], ...] = (
    ("IRNN, SGD", "irnn", "sgd", {}, (1e-2, 1e-3), 7.1),
    ("IRNN, Adam", "irnn", "adam", {}, (1e-3, 3e-4, 1e-4), None),
    ("np-RNN", "np_rnn", "rmsprop", {}, (1e-3, 3e-4, 1e-4), 3.1),
    ("RNN-Path, PathAdam", "rnn_path", "path-adam", {}, (1e-3, 3e-4, 1e-4), 3.1),
    ("RNN-Path, paper's Path-Adam", "rnn_path", "path-adam-paper", {}, (1e-3, 3e-4, 1e-4), 3.1),
)
GATED: tuple[tuple[str, str, str, dict[str, Any], tuple[float, ...], float | None], ...] = (
    ("LSTM", "lstm", "adam", {}, (1e-3,), 1.8),
)
SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {"grid": {"epochs": 5.0}, "final": {"epochs": 200.0}, "gated": {"epochs": 200.0}, "eval_every": 550},
    "laptop": {"grid": {"epochs": 2.0}, "final": {"epochs": 30.0}, "gated": {"epochs": 1.0}, "eval_every": 550},
    "smoke": {"grid": {"steps": 4}, "final": {"steps": 6}, "gated": {"steps": 4}, "eval_every": 4, "hidden": 5,
              "subsample": 7, "batch_size": 5, "valid_size": 10, "limit": 40},
}  # fmt: skip


def _specs(scale: Scale, systems: Sequence[Any], budget: str) -> list[RunSpec]:
    size = {k: v for k, v in SIZES[scale].items() if k not in ("grid", "final", "gated")}
    specs = []
    for _, system, optimiser, settings, rates, _ in systems:
        merged = {**size, **SIZES[scale][budget], "decay": "linear", **settings}
        specs += over(run("smnist", system, optimiser, **merged), lr=rates)
    return specs


def first_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """The plain nets at every rate for a short while; the LSTM, which is slow without its gates fused, only once."""
    return cells([*_specs(scale, SYSTEMS, "grid"), *_specs(scale, GATED, "gated")], PAPER_REF)


def second_stage(scale: Scale, records: Sequence[Record]) -> list[RunCell]:
    """Each plain net at its best rate, for longer."""
    return cells(at_best_rate(_specs(scale, SYSTEMS, "grid"), records, **SIZES[scale]["final"]), PAPER_REF)


def rows() -> list[Row]:
    """The paper's rows."""
    return [
        Row(label, paper, _wants(system, optimiser)) for label, system, optimiser, _, _, paper in (*SYSTEMS, *GATED)
    ]


def _wants(system: str, optimiser: str) -> Any:
    return lambda spec: (spec.system.name, spec.optimiser.name) == (system, optimiser)


def section(filed: Sequence[Filed]) -> Section:
    """Test error, and validation error against time."""
    return Section(
        "smnist",
        "Sequential MNIST",
        "Error in per cent on the 10,000 test images, read one pixel at a time by 100 units.",
        tables=(comparison("Test error in per cent", rows(), filed, Style(1)),),
        figures=(curves("Validation error", rows(), filed, y_label="error in per cent", log_y=True),),
        sources=sources(filed),
    )


SMNIST = Experiment(
    name="smnist",
    title="Sequential MNIST",
    paper_ref=PAPER_REF,
    duration={"paper": "some days on two cores", "laptop": "ninety minutes on two cores", "smoke": "seconds"},
    stages=(first_stage, second_stage),
    section=section,
    data_set="mnist",
)

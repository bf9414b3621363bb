"""Figure 3, table: ||kappa2(W_rec)|| / ||kappa1(W_rec)||.

A word-level net with 10,000 words in and out, H units, outputs at all of T steps, weights from
U[-0.1, 0.1].  The paper's convention counts each pair of uses of a weight once; the derivative
counts it four times ("exact").  Beside the uniform start, the identity, at which the paper's other
experiments begin.  Ratios after training come from the records of ``ptb-word``, which measure them
at every evaluation.

Each figure is computed twice, by the library and by the slow reference, on the same weights.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pathsgd import kappa
from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.report.select import spread
from pathsgd_lab.studies.measurement import MeasuringCell, measurement_source
from pathsgd_lab.studies.study import Scale, Study
from pathsgd_lab.sweep.results import Filed
from pathsgd_lab.systems import RnnPathSystem
from pathsgd_lab.systems.plain import RecurrentNet
from pathsgd_lab.tasks import PtbWordTask

COMMAND = "pathsgd reproduce kappa-ratios"
PAPER = {
    100: {10: 0.00037, 20: 0.00044, 40: 0.00048},
    200: {10: 0.00027, 20: 0.00029, 40: 0.00032},
    400: {10: 0.00014, 20: 0.00016, 40: 0.00022},
}
"""The printed ratios, PAPER[H][T]."""
Start = Literal["uniform", "identity"]


@dataclass(frozen=True)
class RatioRow:
    """Ratios at one number of steps."""

    steps: int
    exact: float
    paper: float
    reference_exact: float
    diagonal: float

    def __post_init__(self) -> None:
        if not self.reference_exact > 0.0:
            raise ValueError(f"reference_exact must be positive, got {self.reference_exact}")


@dataclass(frozen=True)
class RatioCell(MeasuringCell):
    """One random net, measured at several numbers of steps."""

    kind: ClassVar[str] = "kappa-ratios"
    row: ClassVar[type[Any]] = RatioRow

    start: Start
    hidden: int
    seed: int
    vocabulary: int
    steps: tuple[int, ...]

    def measure(self) -> list[dict[str, Any]]:
        """A row per number of steps."""
        return [self._at(steps) for steps in self.steps]

    def _at(self, steps: int) -> dict[str, Any]:
        task = PtbWordTask(window=steps, vocabulary=self.vocabulary)
        system = RnnPathSystem(
            hidden=self.hidden, recurrent=self.start, recurrent_range=0.1, others_range=0.1
        )
        net = system.build(task, self.seed)
        assert isinstance(net, RecurrentNet)
        name, example = "rnn.weight_hh_l0", task.example_inputs()
        first = kappa(net, example, terms="first", relative=True, output=0)[name]
        second = kappa(net, example, terms="second", relative=True, output=0)[name]
        quarter = kappa(net, example, terms="second", convention="paper", relative=True, output=0)[
            name
        ]
        slow = reference(net, steps)
        slow_first, slow_second = slow.kappa1_recurrent(), slow.kappa2_recurrent("exact")
        return {
            "steps": steps,
            "exact": float(second.norm() / first.norm()),
            "paper": float(quarter.norm() / first.norm()),
            "reference_exact": float((slow_second**2).sum() ** 0.5 / (slow_first**2).sum() ** 0.5),
            "diagonal": float((second.diagonal() / first.diagonal()).mean()),
        }


def reference(net: RecurrentNet, steps: int) -> Any:
    """The slow oracle's net with the same weights; the repository's tests have it."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    try:
        from oracle.rnn import SquaredRNN
    finally:
        sys.path.pop()

    table = net.input_matrix.detach().double().numpy()
    return SquaredRNN.from_weights(
        table if net.table is None else table.T,
        net.rnn.weight_hh_l0.detach().double().numpy(),
        net.readout.weight.detach().double().numpy(),
        steps,
        every_step=True,
    )


SIZES: dict[Scale, dict[str, Any]] = {
    "paper": {
        "hidden": (100, 200, 400),
        "steps": (10, 20, 40),
        "seeds": range(5),
        "vocabulary": 10_000,
    },
    "laptop": {
        "hidden": (100, 200, 400),
        "steps": (10, 20, 40),
        "seeds": range(5),
        "vocabulary": 10_000,
    },
    "smoke": {"hidden": (5, 8), "steps": (4, 6), "seeds": range(2), "vocabulary": 30},
}
STARTS: tuple[Start, ...] = ("uniform", "identity")


def stage(scale: Scale, records: Sequence[Any]) -> list[RatioCell]:
    """Every net."""
    size = SIZES[scale]
    return [
        RatioCell(start, hidden, seed, size["vocabulary"], size["steps"])
        for start in STARTS
        for hidden in size["hidden"]
        for seed in size["seeds"]
    ]


def section(filed: Sequence[Filed]) -> Section:
    """A table for each start."""
    return Section(
        "kappa-ratios",
        "The second term of kappa beside the first",
        "||kappa2(W_rec)|| / ||kappa1(W_rec)|| of a word-level net. The paper prints ratios in a "
        "convention that counts each pair of uses of a weight once; the second derivative of "
        "gamma^2 counts it four times.",
        tables=tuple(
            table(start, [f for f in filed if f.record.settings["start"] == start])
            for start in STARTS
        ),
        sources=tuple(measurement_source(f, COMMAND) for f in filed),
    )


def table(start: str, filed: Sequence[Filed]) -> TableData:
    """One start: a row per H and T."""
    shapes = sorted(
        {(f.record.settings["hidden"], row["steps"]) for f in filed for row in f.record.rows}
    )
    columns = (
        "net", "paper", "ours, paper's convention", "difference", "ours, exact",
        "exact, on the diagonal", "seeds",
        "library against reference", "command",
    )  # fmt: skip
    return TableData(
        f"W_rec {start}", columns, tuple(_line(start, *shape, filed) for shape in shapes)
    )


def _line(start: str, hidden: int, steps: int, filed: Sequence[Filed]) -> tuple[Entry, ...]:
    chosen = [f for f in filed if f.record.settings["hidden"] == hidden]
    ratios = [row for f in chosen for row in f.record.rows if row["steps"] == steps]
    keys = tuple(f.record.hash for f in chosen)
    printed = PAPER.get(hidden, {}).get(steps) if start == "uniform" else None
    ours = spread([ratio["paper"] for ratio in ratios])
    error = max(abs(ratio["exact"] / ratio["reference_exact"] - 1.0) for ratio in ratios)
    return (
        Entry(f"H = {hidden}, T = {steps}"),
        Entry("—" if printed is None else f"{printed:.5f}"),
        Entry(ours.text(5), keys),
        Entry("—" if printed is None else f"{ours.mean - printed:+.5f}", keys),
        Entry(spread([ratio["exact"] for ratio in ratios]).text(5), keys),
        Entry(spread([ratio["diagonal"] for ratio in ratios]).text(4), keys),
        Entry(str(len(ratios))),
        Entry("< 1e-6" if error < 1e-6 else f"{error:.0e}"),  # records keep six digits
        Entry(COMMAND),
    )


STUDY = Study(
    name="kappa-ratios",
    title="Size of kappa2 beside kappa1",
    paper_ref="Figure 3, table",
    duration={"paper": "two minutes", "laptop": "two minutes on two cores", "smoke": "seconds"},
    stages=(stage,),
    section=section,
    read=RatioCell.read,
)

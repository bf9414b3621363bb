"""What a step costs: every way to train, beside torch.nn.RNN with Adam, on the same net and data.

The variants take turns in one process, a few steps each, round after round; the figure is the
median round, so that a busy moment of the machine meets all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.run.optimisers import Stepper
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.run.train import numerics
from pathsgd_lab.studies.measurement import MeasuringCell, measurement_source
from pathsgd_lab.studies.study import Scale, Study, run
from pathsgd_lab.sweep.results import Filed
from pathsgd_lab.tasks import Batch, Task
from pathsgd_lab.tools.export import random_inputs, with_torch_layers

COMMAND = "pathsgd reproduce cost"
BASELINE = "torch.nn.RNN, Adam"
# Name, system, optimiser, whether torch's own layer takes the place of the fused one.
VARIANTS: tuple[tuple[str, str, str, bool], ...] = (
    (BASELINE, "rnn_relu", "adam", True),
    ("fused RNN, Adam", "rnn_relu", "adam", False),
    ("fused RNN, Path-SGD", "rnn_path", "path-sgd", False),
    ("fused RNN, PathAdam", "rnn_path", "path-adam-relative", False),
    ("torch.nn.RNN, PathAdam", "rnn_path", "path-adam-relative", True),
    ("torch.nn.LSTM, Adam", "lstm", "adam", False),
)


@dataclass(frozen=True)
class CostRow:
    """Milliseconds per step of one variant."""

    variant: str
    ms: float
    fastest: float
    slowest: float

    def __post_init__(self) -> None:
        if not self.ms > 0.0:
            raise ValueError(f"ms must be positive, got {self.ms}")


@dataclass(frozen=True)
class CostCell(MeasuringCell):
    """One size of net and data."""

    kind: ClassVar[str] = "cost"
    row: ClassVar[type[Any]] = CostRow

    task: str
    hidden: int
    batch: int
    length: int
    rounds: int
    steps: int

    def measure(self) -> list[dict[str, Any]]:
        """Milliseconds per step of every variant."""
        with numerics(threads=1):
            return self._measure()

    def _measure(self) -> list[dict[str, Any]]:
        made = {name: self._stepper(system, how, plain) for name, system, how, plain in VARIANTS}
        times: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(self.rounds + 1):
            for name, (stepper, batch) in made.items():
                start = time.perf_counter()
                for _ in range(self.steps):
                    stepper.step(batch, None)
                if turn:  # the first round warms up
                    times[name].append(1e3 * (time.perf_counter() - start) / self.steps)
        return [
            {
                "variant": name,
                "ms": statistics.median(values),
                "fastest": min(values),
                "slowest": max(values),
            }
            for name, values in times.items()
        ]

    def _spec(self, system: str, optimiser: str) -> RunSpec:
        length = {"length" if self.task == "adding" else "window": self.length}
        if self.task == "smnist":
            length = {}
        return run(self.task, system, optimiser, hidden=self.hidden, **length)

    def _stepper(self, system: str, optimiser: str, torch_layers: bool) -> tuple[Stepper, Batch]:
        spec = self._spec(system, optimiser)
        model = spec.system.build(spec.task, 0)
        if torch_layers:
            model = with_torch_layers(model)
        return spec.optimiser.stepper(spec.system, model, spec.task), random_batch(
            spec.task, self.batch
        )


def random_batch(task: Task, batch: int) -> Batch:
    """Data of the task's shape; what it says does not matter to its speed."""
    inputs = random_inputs(task, task.length, batch)
    if task.metric == "mse":
        return Batch(inputs, inputs[-1, :, :1].clone(), carry=False)
    classes = random_inputs(task, task.length, batch) if task.tokens else None
    targets = classes % task.output_size if classes is not None else (10 * inputs[-1, :, 0]).long()
    return Batch(inputs, targets, carry=False)


# Task, units, sequences, steps per sequence.
SHAPES = (
    ("adding", 100, 16, 100), ("adding", 100, 16, 750), ("smnist", 100, 100, 784),
    ("ptb_word", 200, 32, 20),
    ("ptb_char", 512, 64, 50), ("text8", 512, 64, 180),
)  # fmt: skip
LARGE = (("ptb_char", 2048, 64, 50), ("text8", 2048, 64, 180))


def stage(scale: Scale, records: Sequence[Any]) -> list[CostCell]:
    """Every size."""
    if scale == "smoke":
        return [
            CostCell("adding", 4, 2, 5, rounds=2, steps=2),
            CostCell("ptb_char", 4, 2, 5, rounds=2, steps=2),
        ]
    shapes = SHAPES if scale == "laptop" else (*SHAPES, *LARGE)
    return [
        CostCell(*shape, rounds=7, steps=10 if shape[1] * shape[2] < 5000 else 2)
        for shape in shapes
    ]


def section(filed: Sequence[Filed]) -> Section:
    """One table: sizes down, variants across."""
    columns = ("net", *(f"{name}: ms per step" for name, *_ in VARIANTS), "command")
    rows = []
    for f in sorted(filed, key=lambda f: (f.record.settings["task"], f.record.settings["length"])):
        settings = f.record.settings
        ms = {row["variant"]: row["ms"] for row in f.record.rows}
        label = (
            f"{settings['task']}, H = {settings['hidden']}, "
            f"T = {settings['length']}, B = {settings['batch']}"
        )
        known = [name for name, *_ in VARIANTS if name in ms and BASELINE in ms]
        times = {
            name: Entry(f"{ms[name]:.3g} (x {ms[name] / ms[BASELINE]:.2f})", (f.record.hash,))
            for name in known
        }
        cells = [times.get(name, Entry("—")) for name, *_ in VARIANTS]
        rows.append((Entry(label), *cells, Entry(COMMAND)))
    text = (
        f"One thread; in brackets the time as a multiple of {BASELINE}'s. "
        "Median of several rounds in turn."
    )
    table = TableData("Time per training step", columns, tuple(rows))
    return Section(
        "cost",
        "What a step costs",
        text,
        tables=(table,),
        sources=tuple(measurement_source(f, COMMAND) for f in filed),
    )


STUDY = Study(
    name="cost",
    title="Time per step beside torch.nn.RNN's",
    paper_ref="none (the paper gives no times)",
    duration={
        "paper": "half an hour of one core",
        "laptop": "five minutes of one idle core",
        "smoke": "seconds",
    },
    stages=(stage,),
    section=section,
    read=CostCell.read,
)

"""What a run leaves behind: a growing log while it lasts, and its ``Record`` when it has ended.

    runs/<slug>/spec.json       the run's settings
    runs/<slug>/record.jsonl    one line an event: start, evaluation, promotion, resumption, end
    runs/<slug>/summary.json    the ``Record``, from which all tables and figures are made

A sweep and a study keep records as lines of one table (sweep/results.py).

Numbers that JSON lacks are written as the strings "inf", "-inf" and "nan".  Nothing says on which
host or in which directory a run was made.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from pathsgd_lab.errors import RecordError, SpecError
from pathsgd_lab.files import UNREADABLE, write_text
from pathsgd_lab.run.provenance import Machine
from pathsgd_lab.run.spec import RunSpec, spec_from_json, spec_hash, spec_to_json

Outcome = Literal["solved", "finished", "diverged", "timeout", "stopped", "killed"]
FINAL: tuple[Outcome, ...] = ("solved", "finished", "diverged", "timeout")
"""Outcomes that belong to the run; a run that was stopped or killed can go on."""

VERSION = 2
"""Format of records. 2: one line a run; path-adam is the library's PathAdam at its defaults."""


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    step: int
    epoch: float
    seconds: float
    """Seconds since the start, evaluations included, interruptions not."""
    cpu_seconds: float
    """Processor seconds of the same."""
    train_loss: float
    """Mean training loss since the point before."""
    lr_factor: float
    metrics: dict[str, float]
    """The task's metric on each split that was evaluated."""
    geometry: dict[str, float] = field(default_factory=dict)
    """log gamma^2, ||kappa2|| / ||kappa1|| of the recurrent matrix and its growth rate, where asked
    for."""


@dataclass(frozen=True)
class Promotion:
    """The curriculum went on to longer sequences."""

    step: int
    cpu_seconds: float
    length: int


@dataclass(frozen=True)
class Record:
    """A run that has ended."""

    spec: RunSpec
    outcome: Outcome
    steps: int
    epochs: float
    seconds: float
    cpu_seconds: float
    metrics: dict[str, float]
    """The final figures: validation and test, of the best or the last parameters as the spec
    says."""
    best_step: int
    """Step of the parameters that the final figures are of."""
    parameters: int
    """Numbers that are trained."""
    curve: tuple[Point, ...]
    promotions: tuple[Promotion, ...]
    profile: dict[str, float]
    """Seconds in data, steps, evaluation, checkpoints and the rest."""
    machine: Machine
    versions: dict[str, str]
    commit: str
    """Commit of the source, with a + if there were changes beyond it; empty where it is not
    known."""
    started: str
    """Date and time (UTC) of the start."""
    resumed: int = 0
    """How many times the run was continued."""
    detail: str = ""
    """What an outcome needs in words, such as the step at which a run diverged."""
    remarks: tuple[str, ...] = ()
    """What limits the use of the record, such as code that is gone since."""

    @property
    def hash(self) -> str:
        """The spec's hash under the current dataclasses, whatever fields the record has."""
        return spec_hash(self.spec)

    def to_json(self) -> dict[str, Any]:
        """What ``record_from_json`` reads."""
        return {"version": VERSION, "hash": self.hash, **plain(self)}

    @property
    def test(self) -> float:
        """The final metric on the test set; infinite for a run without one (it diverged, say)."""
        return self.metrics.get("test", math.inf)

    @property
    def valid(self) -> float:
        """The final metric on the validation set, likewise."""
        return self.metrics.get("valid", math.inf)


def plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as JSON has them, numbers to six significant digits."""
    if isinstance(value, RunSpec):
        return spec_to_json(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def record_from_json(content: Any) -> Record:
    """The record that ``plain`` made JSON of; every field is checked."""
    try:
        checked = msgspec.convert(_revived(content), _schema())
        fields = {f.name: getattr(checked, f.name) for f in dataclasses.fields(Record)}
        record = Record(**{**fields, "spec": spec_from_json(fields["spec"])})
    except (msgspec.ValidationError, SpecError, RecursionError) as error:
        raise RecordError(f"not the record of a run: {error}") from error
    if record.outcome != "diverged" and not all(map(math.isfinite, record.metrics.values())):
        raise RecordError(
            f"it has the outcome {record.outcome} with figures that are not finite: "
            f"{record.metrics}"
        )
    if not all("valid" in point.metrics for point in record.curve) or "step" not in record.profile:
        raise RecordError("its curve lacks the validation metric, or its profile the time of steps")
    return record


@functools.cache
def _schema() -> type[msgspec.Struct]:
    """What a file must hold: the fields of ``Record``, with the settings still as JSON."""
    hints: dict[str, Any] = {**typing.get_type_hints(Record), "spec": dict[str, Any]}
    required = [
        (f.name, hints[f.name])
        for f in dataclasses.fields(Record)
        if f.default is dataclasses.MISSING
    ]
    optional = [
        (f.name, hints[f.name], f.default)
        for f in dataclasses.fields(Record)
        if f.default is not dataclasses.MISSING
    ]
    head: list[Any] = [("version", Literal[2]), ("hash", str)]
    return msgspec.defstruct(
        "RecordFile", [*head, *required, *optional], forbid_unknown_fields=True
    )


def _revived(value: Any) -> Any:
    """The numbers that JSON lacks, from the words that stand for them."""
    if isinstance(value, dict):
        return {name: _revived(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_revived(inner) for inner in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def write_record(record: Record, path: Path) -> None:
    """Write a run's summary atomically, one line per point so that differences are readable."""
    lines = [f"  {json.dumps(k)}: {_lines(value, k)}" for k, value in record.to_json().items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _lines(value: Any, key: str) -> str:
    if key in ("curve", "promotions") and value:
        return "[\n" + ",\n".join(f"    {json.dumps(point)}" for point in value) + "\n  ]"
    return json.dumps(value)


def read_record(path: Path) -> Record:
    """The record in a file."""
    try:
        return record_from_json(msgspec.json.decode(path.read_bytes()))
    except (*UNREADABLE, RecordError) as error:
        raise RecordError(f"{path} cannot be read as a record: {error}") from error

"""What a run leaves behind: a growing log while it lasts, and one small file when it has ended.

    runs/<slug>/spec.json       the run's settings
    runs/<slug>/record.jsonl    start, every evaluation, promotions, resumptions, end: one JSON object a line
    runs/<slug>/summary.json    the ``Record``, from which all tables and figures are made

Numbers that JSON lacks are written as the strings "inf", "-inf" and "nan".  Nothing says on which host or in which
directory a run was made.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pathsgd.lab import spec as specs
from pathsgd.lab.spec import RunSpec

Outcome = Literal["solved", "finished", "diverged", "timeout", "stopped", "killed"]
FINAL: tuple[Outcome, ...] = ("solved", "finished", "diverged", "timeout")
"""Outcomes that belong to the run; a run that was stopped or killed can go on."""

VERSION = 1


class RecordError(RuntimeError):
    """A record that cannot be read."""


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
    """log gamma^2 and ||kappa2|| / ||kappa1|| of the recurrent matrix, where asked for."""


@dataclass(frozen=True)
class Promotion:
    """The curriculum went on to longer sequences."""

    step: int
    cpu_seconds: float
    length: int


@dataclass(frozen=True)
class Machine:
    """Where a run was made, as far as it matters to its speed."""

    cpu: str
    cores: int
    system: str
    threads: int


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
    """The final figures: validation and test, of the best or the last parameters as the spec says."""
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
    """Commit of the source, with a + if there were changes beyond it; empty where it is not known."""
    started: str
    """Date and time (UTC) of the start."""
    resumed: int = 0
    """How many times the run was continued."""
    detail: str = ""
    """What an outcome needs in words, such as the step at which a run diverged."""

    @property
    def hash(self) -> str:
        """The spec's hash by today's dataclasses, whatever fields there were when the record was written."""
        return specs.spec_hash(self.spec)

    @property
    def test(self) -> float:
        """The final metric on the test set; infinite for a run that has none, such as one that diverged."""
        return self.metrics.get("test", math.inf)

    @property
    def valid(self) -> float:
        """The final metric on the validation set, likewise."""
        return self.metrics.get("valid", math.inf)


def to_json(value: Any) -> Any:
    """Dataclasses, tuples and numbers as JSON has them, numbers to six significant digits."""
    if isinstance(value, RunSpec):
        return specs.to_json(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def from_json(content: dict[str, Any]) -> Record:
    """The record that ``to_json`` wrote."""
    try:
        fields = {k: v for k, v in content.items() if k not in ("version", "hash")}
        fields["spec"] = specs.from_json(fields["spec"])
        fields["curve"] = tuple(_point(p) for p in fields["curve"])
        fields["promotions"] = tuple(Promotion(**p) for p in fields["promotions"])
        fields["machine"] = Machine(**fields["machine"])
        fields["metrics"] = _numbers(fields["metrics"])
        return Record(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"not the record of a run: {error}") from error


def _point(content: dict[str, Any]) -> Point:
    numbers: dict[str, Any] = {k: _numbers(v) if isinstance(v, dict) else v for k, v in content.items()}
    return Point(**{**numbers, "train_loss": float(content["train_loss"])})


def _numbers(content: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in content.items()}


def write_record(record: Record, path: Path) -> None:
    """Write the summary of a run, in one step and with one line per point so that a difference can be read."""
    content = {"version": VERSION, "hash": record.hash, **to_json(record)}
    lines = [f"  {json.dumps(key)}: {_lines(value, key)}" for key, value in content.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _lines(value: Any, key: str) -> str:
    if key in ("curve", "promotions") and value:
        return "[\n" + ",\n".join(f"    {json.dumps(point)}" for point in value) + "\n  ]"
    return json.dumps(value)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


def read_record(path: Path) -> Record:
    """The record in a file."""
    try:
        return from_json(json.loads(path.read_text("utf-8")))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecordError) as error:
        raise RecordError(f"{path} cannot be read as a record: {error}") from error


class RunLog:
    """The growing log of a run; an object a line, each flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: str, **content: Any) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **to_json(content)}) + "\n")

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step``: the run goes on from a checkpoint made there."""
        kept = [line for line in self.read() if line.get("step", 0) <= step and line["kind"] != "end"]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def read(self) -> list[dict[str, Any]]:
        """All lines; a last one that was torn by a kill is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text("utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # what follows the last line end is empty, or torn


def machine(threads: int) -> Machine:
    """This machine, without a name."""
    return Machine(_cpu_name(), os.cpu_count() or 1, f"{platform.system()} {platform.machine()}", threads)


@functools.cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows a little
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """What the result may depend on."""
    from pathsgd.lab import __version__

    return {
        "pathsgd": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@functools.cache
def commit() -> str:
    """Commit of the source that is running, with a + for uncommitted changes; empty outside a work tree."""
    here = Path(__file__).parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie in another's tree
        revision = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+" if changed else "")


def _git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

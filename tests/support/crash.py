"""Runs interrupted at every change they make to the disk, and their results when resumed.

``python -m support.crash`` (from tests/) interrupts all of them and prints the table of
docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pathsgd_lab.run.record import Record, plain
from pathsgd_lab.run.spec import RunSpec, default_spec, replace_settings
from pathsgd_lab.run.train import spec_of, train
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import RunTable
from support.disk import NEEDS_THE_DISK, STOPS, Change, Recorder, Stop, after

SMALL: dict[str, Any] = {
    "length": 4,
    "hidden": 3,
    "steps": 60,
    "eval_every": 20,
    "valid_size": 8,
    "test_size": 8,
}
OTHERS = (
    "seconds",
    "cpu_seconds",
    "profile",
    "machine",
    "versions",
    "commit",
    "started",
    "resumed",
)
"""What two runs of the same settings need not have in common."""

CALM = replace_settings(
    default_spec("adding", "irnn", "sgd"), **SMALL, start_length=3, promote_below=10.0
)
DIVERGING = replace_settings(
    default_spec("adding", "irnn", "sgd"), **SMALL, lr=1e9, clip=0.0, explode=1e3
)
ANOTHER = replace_settings(CALM, lr=0.5)

Fault = Literal["once", "from then on"]
FAULTS: dict[Fault, int] = {"once": errno.EIO, "from then on": errno.ENOSPC}


def result(record: Record) -> Any:
    """What must be the same however often a run was stopped."""
    content = plain(record)
    for point in content["curve"] + content["promotions"]:
        for name in ("seconds", "cpu_seconds"):
            point.pop(name, None)
    return {name: value for name, value in content.items() if name not in OTHERS}


def trained(spec: RunSpec, folder: Path) -> Any:
    """Train in a folder, with a checkpoint as often as possible, or go on with what is there."""
    return result(train(spec, folder / "run", resume=True, checkpoint_seconds=0.0))


def cell(folder: Path) -> Any:
    """One cell of a sweep, whose record goes elsewhere and whose checkpoints go when it has."""
    table = RunTable(folder / "results")
    if not table.has(RunCell(CALM).key):
        RunCell(CALM).run(folder / "run", table, None)
    (filed,) = table.filed()
    return result(filed.record)


def old_run(folder: Path) -> Any:
    """What is in the folder before another run takes its place."""
    return trained(CALM, folder)


def begin_anew(folder: Path) -> Any:
    """Another run in the place of the old one."""
    return result(train(ANOTHER, folder / "run", restart=True, checkpoint_seconds=0.0))


def go_on_with_what_is_there(folder: Path) -> Any:
    """Whichever of the two runs the folder has."""
    return trained(spec_of(folder / "run"), folder)


@dataclass(frozen=True)
class Scenario:
    """Something that changes the disk, and how it goes on after a stop."""

    title: str
    act: Callable[[Path], Any]
    resume: Callable[[Path], Any]
    before: Callable[[Path], Any] = lambda folder: None
    """What was done in the folder before."""
    or_before: bool = False
    """Whether the outcome of ``before`` is as good as that of ``act``: nothing was begun yet."""


SCENARIOS: dict[str, Scenario] = {
    "run": Scenario("a run", lambda f: trained(CALM, f), lambda f: trained(CALM, f)),
    "diverging": Scenario(
        "a run that diverges", lambda f: trained(DIVERGING, f), lambda f: trained(DIVERGING, f)
    ),
    "cell": Scenario("a cell of a sweep", cell, cell),
    "restart": Scenario(
        "a run begun anew over a finished one",
        begin_anew,
        go_on_with_what_is_there,
        old_run,
        or_before=True,
    ),
}


@dataclass(frozen=True)
class Uninterrupted:
    """What a scenario does when it is left alone."""

    changes: list[Change]
    outcomes: list[Any]

    def moments(self, stop: Stop) -> list[int]:
        """The numbers of changes at which it can stop so: a write can be torn, nothing else can."""
        if stop == "torn":
            return [count for count, change in enumerate(self.changes) if change.call == "write"]
        return list(range(len(self.changes) + 1))

    @property
    def faults(self) -> int:
        """How many of its calls can fail."""
        return sum(change.call in NEEDS_THE_DISK for change in self.changes)


def left_alone(scenario: Scenario, start: Path, folder: Path) -> Uninterrupted:
    """Act once in ``folder``, which then has what ``start`` had and what was done."""
    start.mkdir()
    before = scenario.before(start)
    after(start, [], 0, "killed", folder)
    with Recorder(folder) as recorder:
        outcome = scenario.act(folder)
    return Uninterrupted(recorder.changes, [outcome, before] if scenario.or_before else [outcome])


def stopped(
    scenario: Scenario, calm: Uninterrupted, start: Path, place: Path, stop: Stop
) -> Iterator[str]:
    """Stop at every moment in turn and go on; what was wrong, if anything."""
    for count in calm.moments(stop):
        folder = place / f"{stop}-{count}"
        after(start, calm.changes, count, stop, folder)
        if scenario.resume(folder) not in calm.outcomes:
            yield f"{scenario.title}, {stop} after {count} changes"


def failed(
    scenario: Scenario, calm: Uninterrupted, start: Path, place: Path, fault: Fault
) -> Iterator[str]:
    """Let every call fail in turn and go on; what was wrong, if anything."""
    for number in range(calm.faults):
        folder = place / f"{fault}-{number}".replace(" ", "-")
        after(start, [], 0, "killed", folder)
        with (
            contextlib.suppress(OSError),
            Recorder(folder, number, FAULTS[fault], lasting=fault == "from then on"),
        ):
            scenario.act(folder)
        if [path for path in folder.rglob("*.tmp") if path.is_file()]:
            yield f"{scenario.title}, call {number} failed {fault}: files left behind"
        if scenario.resume(folder) not in calm.outcomes:
            yield f"{scenario.title}, call {number} failed {fault}"


def table() -> str:
    """Every scenario, interrupted at every moment: how often, and how many results differed."""
    lines = [
        "| what was knocked | changes to the disk | stops | failing calls | other results |",
        "|---|---|---|---|---|",
    ]
    for scenario in SCENARIOS.values():
        with tempfile.TemporaryDirectory() as directory:
            start, place = Path(directory) / "start", Path(directory)
            calm = left_alone(scenario, start, place / "calm")
            wrong = [w for stop in STOPS for w in stopped(scenario, calm, start, place, stop)]
            wrong += [w for fault in FAULTS for w in failed(scenario, calm, start, place, fault)]
        lines.append(row(scenario, calm, len(wrong)))
        print(*wrong, sep="\n", file=sys.stderr)
    return "\n".join(lines)


def row(scenario: Scenario, calm: Uninterrupted, wrong: int) -> str:
    """A line of the table."""
    stops, faults = sum(len(calm.moments(stop)) for stop in STOPS), len(FAULTS) * calm.faults
    return f"| {scenario.title} | {len(calm.changes)} | {stops} | {faults} | {wrong} |"


if __name__ == "__main__":
    print(table())

"""What a study is, and the few ways in which all of them choose runs.

STUDY.stages   lists of cells, a later stage chosen by the records of the earlier ones
STUDY.section  records -> tables and figures of the report
STUDY.tables   records -> tables of pages, by name
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pathsgd_lab.report.model import Section
from pathsgd_lab.report.select import best_group, groups
from pathsgd_lab.run.record import Record, record_from_json
from pathsgd_lab.run.spec import RunSpec, default_spec, replace_settings, settings, spec_hash
from pathsgd_lab.sweep.cells import Cell, RunCell
from pathsgd_lab.sweep.results import Filed, Read

Scale = Literal["paper", "laptop", "smoke"]
SCALES: tuple[Scale, ...] = ("paper", "laptop", "smoke")

LITERAL: dict[str, Any] = {"rho": 0.0, "clip": 0.0, "growth_limit": 0.0, "refresh_every": 1}
"""Settings of path-sgd that make it p <- p - lr grad / kappa and nothing else."""

Stage = Callable[[Scale, Sequence[Any]], Sequence[Cell]]
"""Cells to run, given the scale and the records so far."""


Table = Callable[[Sequence[Filed]], str]
"""Markdown from runs."""
Picture = Callable[[Sequence[Filed], Path], None]
"""Draws runs to a file."""


@dataclass(frozen=True)
class Study:
    """One question and the runs that answer it."""

    name: str
    title: str
    section: Callable[[Sequence[Filed]], Section]
    """The study's part of a report, from the runs there are."""
    paper_ref: str = ""
    """Which table or figure of the paper."""
    stages: tuple[Stage, ...] = ()
    duration: Mapping[Scale, str] = field(default_factory=dict)
    """About how long it takes, on what."""
    read: Read = record_from_json
    reads: tuple[str, ...] = ()
    """Other studies whose runs it shows in place of its own."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables of pages besides the section's, which have the study's name."""
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    """Pictures of pages, by the name of the file."""


def run(task: str, system: str, optimiser: str, **changes: Any) -> RunSpec:
    """A spec from names and settings."""
    return replace_settings(default_spec(task, system, optimiser), **changes)


def uses(system: str | None = None, optimiser: str | None = None) -> Callable[[RunSpec], bool]:
    """Whether a run is one of this system and this optimiser; None: of any."""
    return lambda spec: (
        system in (None, spec.system.name) and optimiser in (None, spec.optimiser.name)
    )


def over(spec: RunSpec, **axes: Iterable[Any]) -> list[RunSpec]:
    """The spec at every combination of some settings."""
    specs = [spec]
    for name, values in axes.items():
        chosen = list(values)
        specs = [replace_settings(s, **{name: value}) for s in specs for value in chosen]
    return specs


def cells(specs: Iterable[RunSpec], paper_ref: str) -> list[RunCell]:
    """Specs as cells of a sweep, each saying where in the paper it belongs."""
    return [RunCell(replace_settings(spec, paper_ref=paper_ref)) for spec in specs]


def at_best_rate(
    specs: Iterable[RunSpec], records: Sequence[Record], *, next_lower: bool = False, **changes: Any
) -> list[RunSpec]:
    """For each method in ``specs``, its candidate with the best validation, with some changes.

    A method is what differs in more than learning rate and seed.  A method without records is left
    out: its grid has not been run (yet), so nothing is known of its best rate.

    next_lower: also the candidates at the next lower rate, which often overtake in a run that is
    much longer.
    """
    known = {record.hash: record for record in records}
    chosen = []
    for candidates in groups(specs, without=("lr", "seed")).values():
        found = [known[key] for key in map(spec_hash, candidates) if key in known]
        if found:
            best = best_group(found)[0].spec
            rates = [rate_of(best)]
            if next_lower:
                rates += sorted(rate for rate in map(rate_of, candidates) if rate < rates[0])[-1:]
            chosen += over(replace_settings(best, **changes), lr=rates)
    return chosen


def seed_by_seed(specs: Sequence[RunSpec], seeds: Iterable[int]) -> list[RunSpec]:
    """The specs on several seeds, seed by seed: a run cut short has fewer seeds of every spec."""
    return [replace_settings(spec, seed=seed) for seed in seeds for spec in specs]


def rate_of(spec: RunSpec) -> float:
    """The learning rate of a run."""
    return float(dict(settings(spec))["lr"])

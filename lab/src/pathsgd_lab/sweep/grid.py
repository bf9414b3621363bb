"""Grids: ``lr=1e-3,3e-3 seed=0..4 optimiser=adam,path-adam`` and the runs they stand for."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence

from pathsgd_lab import flags
from pathsgd_lab.errors import SpecError, UsageError
from pathsgd_lab.run.spec import REGISTRIES, RunSpec, settings, with_component


def parse_grid(axes: Sequence[str]) -> dict[str, list[str]]:
    """Names and values; ``0..4`` is short for 0,1,2,3,4."""
    grid: dict[str, list[str]] = {}
    for axis in axes:
        name, equals, values = axis.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not values.strip():
            raise UsageError(
                f"{axis!r} is no axis of a grid: write name=value,value, such as lr=1e-3,3e-3"
            )
        if name in grid:
            raise UsageError(f"the grid has {name} twice: give all its values in one place")
        grid[name] = [v for part in values.split(",") for v in _range(part.strip())]
        if "" in grid[name]:
            raise UsageError(f"{axis!r} has an empty value")
    return grid


def _range(text: str) -> list[str]:
    match = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if not match:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise UsageError(f"{text} is an empty range")
    return [str(n) for n in range(first, last + 1)]


def runs_of(base: RunSpec, grid: dict[str, list[str]]) -> list[RunSpec]:
    """Every distinct combination, in the order of the grid, the last axis fastest."""
    runs = [
        _run(base, dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    return list(dict.fromkeys(runs))


def _run(base: RunSpec, choice: dict[str, str]) -> RunSpec:
    spec = base
    try:
        for kind in REGISTRIES:
            if kind in choice:
                spec = with_component(spec, kind, choice[kind])
    except (SpecError, ValueError) as error:
        raise UsageError(str(error)) from error
    words: list[str] = []
    known = dict(settings(spec))
    for name, value in choice.items():
        if name not in REGISTRIES:
            words += _words(spec, name, value, known)
    return flags.with_flags(spec, words, "pathsgd sweep")


def _words(spec: RunSpec, name: str, value: str, known: dict[str, object]) -> list[str]:
    if name not in known:
        where = f"{spec.task.name} {spec.system.name} {spec.optimiser.name}"
        raise UsageError(
            f"{where} has no setting {name!r} to make a grid of; it has {', '.join(sorted(known))}"
        )
    flag = name.replace("_", "-")
    if isinstance(known[name], bool):
        if value.lower() not in ("true", "false"):
            raise UsageError(f"{name} is true or false, not {value!r}")
        return [f"--{flag}" if value.lower() == "true" else f"--no-{flag}"]
    return [f"--{flag}", *shlex.split(value)]

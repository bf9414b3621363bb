"""Command-line flags made from the dataclasses themselves, and the command that a spec stands for.

parse(kind, arguments, default)    flags -> dataclass, with one-line errors
parse_run(arguments)               TASK SYSTEM [OPTIMISER] or a file, then flags -> RunSpec
command_of(spec)                   RunSpec -> the shortest command line that gives it again
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from pathsgd_lab.errors import SpecError, UsageError
from pathsgd_lab.run.optimisers.retired import REMARK, RetiredOptimiser
from pathsgd_lab.run.spec import REGISTRIES, RunSpec, default_spec, read_spec, settings

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], prog: str, default: T | None = None) -> T:
    """A dataclass from flags; ``--help`` prints them and leaves."""
    shown = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(shown), _wide_if_not_shown(arguments):
            return tyro.cli(
                kind, args=list(arguments), prog=prog, config=(tyro.conf.OmitArgPrefixes,), **extra
            )
    except ValueError as error:  # settings that cannot go together
        raise UsageError(f"{error} (see {prog} --help)") from error
    except SystemExit as leaving:
        if not leaving.code:
            raise
        raise UsageError(_one_line(shown.getvalue()) + f" (see {prog} --help)") from None


@contextlib.contextmanager
def _wide_if_not_shown(arguments: Sequence[str]) -> Any:
    """Errors are laid out in a box as wide as the terminal: a wide one breaks no word in two."""
    before = os.environ.get("COLUMNS")
    if not {"-h", "--help"} & set(arguments):
        os.environ["COLUMNS"] = "1000"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = before


def _one_line(panel: str) -> str:
    """The message of an error box: its first paragraph, and the flag it suggests."""
    lines = [line.strip("│ \n") for line in panel.splitlines() if not line.startswith(("╭", "╰"))]
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if set(line) <= {"─"}:
            paragraphs.append([])
        else:
            paragraphs[-1].append(line)
    message = " ".join(paragraphs[0])
    suggestion = re.search(r"Perhaps you meant:\s*\S*\s*(--[\w-]+)", " ".join(lines))
    return f"{message}; perhaps you meant {suggestion[1]}" if suggestion else message


def split_names(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first flag, and the rest."""
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def named_spec(names: Sequence[str], usage: str) -> RunSpec:
    """The run that TASK SYSTEM [OPTIMISER], or the name of a file with a spec, stands for."""
    if len(names) == 1 and (names[0].endswith(".json") or Path(names[0]).is_dir()):
        return spec_at(Path(names[0]))
    if len(names) not in (2, 3):
        choices = "; ".join(
            f"{kind}s: {', '.join(registry)}" for kind, registry in REGISTRIES.items()
        )
        raise UsageError(
            f"{usage}: give a task and a system (and an optimiser), or a file with a spec. "
            f"{choices}"
        )
    try:
        return default_spec(*names)
    except (SpecError, ValueError) as error:
        raise UsageError(str(error)) from error


def spec_at(path: Path) -> RunSpec:
    """The spec in a file, in a run's directory, or in a record."""
    file = path / "spec.json" if path.is_dir() else path
    if not file.exists():
        raise UsageError(
            f"{file} not found: give a file with the JSON of a run, or the directory of one"
        )
    return read_spec(file)


def with_flags(spec: RunSpec, arguments: Sequence[str], prog: str) -> RunSpec:
    """The run with some settings changed by flags."""
    return parse(RunSpec, arguments, prog, spec)


def command_of(spec: RunSpec, program: str = "pathsgd train") -> str:
    """The command that makes this run: names, and a flag for each setting not at its default."""
    if isinstance(spec.optimiser, RetiredOptimiser):
        return REMARK
    defaults = dict(settings(default_spec(spec.task.name, spec.system.name, spec.optimiser.name)))
    words = [*program.split(), spec.task.name, spec.system.name, spec.optimiser.name]
    for name, value in settings(spec):
        if name != "paper_ref" and value != defaults[name]:
            words += flag_words(name, value)
    return shlex.join(words)


def flag_words(name: str, value: Any) -> list[str]:
    """One setting as it is written on the command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", str(value)]

"""``pathsgd data list | fetch | check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from pathsgd_lab import flags
from pathsgd_lab.commands.common import make_console
from pathsgd_lab.data import download, files
from pathsgd_lab.errors import DataError, UsageError

Action = Literal["list", "fetch", "check"]


@dataclass(frozen=True)
class DataOptions:
    """List the data sets, download them, or check them against their checksums."""

    action: tyro.conf.Positional[Action]
    """list: what there is and what is here; fetch: download what is missing; check: compare every
    checksum."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Data sets to fetch or check (mnist, ptb, text8); none: all."""
    data_dir: Path | None = None
    """Where the data lies; None: $PATHSGD_DATA, or the user's cache directory."""


def main(arguments: Sequence[str]) -> int:
    """Parse and do."""
    options = flags.parse(DataOptions, arguments, "pathsgd data")
    unknown = [name for name in options.names if name not in files.DATA_SETS]
    if unknown:
        raise UsageError(
            f"unknown data set {unknown[0]!r}; choose one of {', '.join(files.DATA_SETS)}"
        )
    console = make_console()
    if options.action == "fetch":
        fetch(options.names or tuple(files.DATA_SETS), options.data_dir, console)
        return 0
    statuses = (files.check if options.action == "check" else files.list_files)(options.data_dir)
    return show(
        [s for s in statuses if not options.names or s.data_set in options.names], options, console
    )


def show(statuses: list[files.FileStatus], options: DataOptions, console: Console) -> int:
    """Print the files; the check fails for a wrong file, or for a data set without any source."""
    table = Table("data set", "file", "bytes", "state", box=None, pad_edge=False)
    for status in statuses:
        state = (
            status.condition
            if status.required or status.condition != "missing"
            else "missing (not needed)"
        )
        table.add_row(
            status.data_set,
            status.file.path,
            f"{status.file.size:,}",
            f"{state}: {status.detail}" if status.detail else state,
        )
    console.print(f"data directory: {files.data_directory(options.data_dir)}", highlight=False)
    console.print(table)
    if options.action == "list":
        return 0
    bad = [s.file.path for s in statuses if s.condition == "wrong"]
    for name in {s.data_set for s in statuses}:
        of_set = [s for s in statuses if s.data_set == name]
        whole = all(s.condition == "ok" for s in of_set if s.required)
        stood_in = any(s.condition == "ok" for s in of_set if not s.required)
        if not whole and not stood_in:
            bad.append(name)
    if bad:
        raise DataError(f"not as it should be: {', '.join(sorted(bad))}; run `pathsgd data fetch`")
    return 0


def fetch(names: Sequence[str], directory: Path | None, console: Console) -> None:
    """Download with a bar per file."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, int] = {}

        def report(file: files.DataFile, there: int) -> None:
            if file.path not in bars:
                bars[file.path] = progress.add_task(file.path, total=file.size)
            progress.update(bars[file.path], completed=there)  # type: ignore[arg-type]

        for name in names:
            for path in download.fetch(name, directory, report):
                progress.console.print(f"{path} ok", highlight=False)

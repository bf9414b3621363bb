"""``pathsgd report [RESULTS]``: a page from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from pathsgd_lab import flags
from pathsgd_lab.commands.common import RUNS, make_console
from pathsgd_lab.errors import UsageError
from pathsgd_lab.files import write_text
from pathsgd_lab.report.page import page
from pathsgd_lab.report.pictures import write_pictures
from pathsgd_lab.studies.find import Studies
from pathsgd_lab.studies.sections import INTRODUCTION, TITLE, sections


@dataclass(frozen=True)
class ReportOptions:
    """Make a self-contained page with the paper's tables and figures beside ours, from records."""

    results: tyro.conf.Positional[Path | None] = None
    """Directory with a folder of runs per study; None: the studies' own."""
    studies: Path | None = None
    """Folder of the studies; None: $PATHSGD_STUDIES, or that of the clone."""
    out: Path = RUNS / "report.html"
    """The page; it needs no network."""
    pictures: Path | None = None
    """Also write every figure as a PNG into this directory."""


def main(arguments: Sequence[str]) -> int:
    """Parse and write."""
    options = flags.parse(ReportOptions, arguments, "pathsgd report")
    if options.results is not None and not options.results.is_dir():
        raise UsageError(
            f"{options.results} is not a directory of runs: give one, or make one by "
            "pathsgd reproduce"
        )
    found = sections(Studies(options.studies, options.results))
    write_text(options.out, page(TITLE, INTRODUCTION, found))
    console = make_console()
    for section in found:
        console.print(f"{section.name:<20} {len(section.sources):>4} records", highlight=False)
    if options.pictures is not None:
        written = write_pictures(found, options.pictures)
        console.print(f"{len(written)} pictures in {options.pictures}", highlight=False)
    console.print(f"page: {options.out}", highlight=False)
    return 0

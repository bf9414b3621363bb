"""``pathsgd tables [PAGES]``: rewrite the tables and pictures of Markdown pages from records."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from pathsgd_lab import flags
from pathsgd_lab.errors import UsageError
from pathsgd_lab.files import write_file, write_text
from pathsgd_lab.report.markdown import filled
from pathsgd_lab.studies.find import Studies
from pathsgd_lab.studies.pages import page_pictures, page_tables

USUAL = (Path("README.md"), Path("docs"), Path("studies"))
PICTURES = Path("docs") / "pictures"


@dataclass(frozen=True)
class TablesOptions:
    """Write the tables of Markdown pages anew, from records alone.

    A page marks a table by the lines `<!-- table NAME -->` and `<!-- end of table -->`. Where no
    pages are given, the pictures in docs/pictures that are made from records are drawn anew, too.
    """

    pages: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Pages, or directories of them; none: README.md, docs and studies, where they are."""
    studies: Path | None = None
    """Folder of the studies; None: $PATHSGD_STUDIES, or that of the clone."""
    check: bool = False
    """Write nothing; leave with exit code 1 if a page is not up to date."""


def main(arguments: Sequence[str]) -> int:
    """Parse, then write or check every page."""
    options = flags.parse(TablesOptions, arguments, "pathsgd tables")
    studies, stale = Studies(options.studies), 0
    tables = page_tables(studies)
    for page in pages_in(options.pages or [path for path in USUAL if path.exists()]):
        text = page.read_text("utf-8")
        renewed = filled(text, tables)
        if renewed == text:
            continue
        stale += 1
        if not options.check:
            write_text(page, renewed)
        print(f"{page}: {'not up to date' if options.check else 'written'}")
    if not options.pages and PICTURES.exists():
        for name in stale_pictures(studies, PICTURES, write=not options.check):
            stale += 1
            print(f"{PICTURES / name}: {'not up to date' if options.check else 'written'}")
    return 1 if options.check and stale else 0


def stale_pictures(studies: Studies, directory: Path, *, write: bool) -> list[str]:
    """Names of the pictures that differ from what the records make; written where asked for."""
    stale = []
    with tempfile.TemporaryDirectory() as made:
        for name, draw in page_pictures(studies).items():
            draw(Path(made) / name)
            content, here = (Path(made) / name).read_bytes(), directory / name
            if not here.exists() or here.read_bytes() != content:
                stale.append(name)
                if write:
                    write_file(here, content)
    return stale


def pages_in(paths: Sequence[Path]) -> list[Path]:
    """The pages themselves, in the order of their names within a directory."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} not found: give Markdown pages, or directories of them")
        inside = [*path.glob("*.md"), *path.glob("*/README.md")]
        found += sorted(inside) if path.is_dir() else [path]
    return found

"""The tables and pictures that pages can show, by name; ``pathsgd tables`` makes them from runs.

NAME     the tables of a study, each under its title
others   the study's ``tables``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import TableData
from pathsgd_lab.studies.find import Studies
from pathsgd_lab.studies.study import Picture, Table

NOT_ON_A_PAGE = (
    "command",
    "seconds",
    "seconds of one core",
    "ms per step",
    "library against reference",
)


def page_tables(studies: Studies) -> dict[str, Callable[[], str]]:
    """Every table that a page can name, to be made when it is asked for."""
    found: dict[str, Callable[[], str]] = {}
    for study in studies:
        found[study.name] = partial(_section, studies, study.name)
        found |= {name: partial(_table, studies, study.name, t) for name, t in study.tables.items()}
    return found


def page_pictures(studies: Studies) -> dict[str, Callable[[Path], None]]:
    """Pictures of pages by their file's name, each to be drawn to a path."""
    return {
        name: partial(_picture, studies, study.name, draw)
        for study in studies
        for name, draw in study.pictures.items()
    }


def titled(tables: Sequence[TableData], without: Sequence[str] = NOT_ON_A_PAGE) -> str:
    """Some tables one below the other, each under its title."""
    return "\n".join(f"**{table.title}**\n\n{markdown(table, without)}" for table in tables)


def _section(studies: Studies, name: str) -> str:
    return titled(studies[name].section(studies.filed(name)).tables)


def _table(studies: Studies, name: str, table: Table) -> str:
    return table(studies.filed(name))


def _picture(studies: Studies, name: str, draw: Picture, path: Path) -> None:
    draw(studies.filed(name), path)

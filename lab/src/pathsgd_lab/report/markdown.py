"""Tables of a report as Markdown, and pages whose tables are made from records.

A page marks where a table belongs:

    <!-- table NAME -->
    ... whatever stands here is replaced ...
    <!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from pathsgd_lab.errors import PageError
from pathsgd_lab.report.model import TableData

_BLOCK = re.compile(
    r"(<!-- table (?P<name>[\w-]+) -->\n)(?P<content>.*?)(<!-- end of table -->)", re.DOTALL
)


def markdown(table: TableData, without: Collection[str] = ()) -> str:
    """The table's columns, except some, as a Markdown table, with its caption below."""
    kept = [i for i, name in enumerate(table.columns) if name not in without]
    lines = [_line([table.columns[i] for i in kept]), "|" + "---|" * len(kept)]
    lines += [_line([row[i].text for i in kept]) for row in table.rows]
    text = "\n".join(lines) + "\n"
    return f"{text}\n{table.caption}\n" if table.caption else text


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def tables_in(page: str) -> list[str]:
    """The names of the tables that a page has."""
    return [match["name"] for match in _BLOCK.finditer(page)]


def filled(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The page with every table made anew."""

    def renew(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise PageError(f"no table {match['name']!r}; there are {', '.join(sorted(tables))}")
        return f"{match[1]}\n{tables[match['name']]().strip()}\n\n{match[4]}"

    return _BLOCK.sub(renew, page)

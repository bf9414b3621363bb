"""The tables in the pages of docs/ that are made from records, by name; `pathsgd tables` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pathsgd.lab.experiments import EXPERIMENTS
from pathsgd.lab.experiments.every_cell import every_cell
from pathsgd.lab.experiments.paper_rule import constants_table, end_table, is_map, map_tables
from pathsgd.lab.report.markdown import markdown
from pathsgd.lab.report.model import TableData
from pathsgd.lab.sweep.results import Filed, ResultsFolder


def page_tables(results: Path) -> dict[str, Callable[[], str]]:
    """Every table that a page can name."""

    def filed(name: str) -> list[Filed]:
        return ResultsFolder(results / name, EXPERIMENTS[name].read).filed()

    return {
        "every-cell": lambda: titled(every_cell(results), without=("command",)),
        "every-command": lambda: titled(every_cell(results), without=("units, of the paper's", "steps", "seeds")),
        "paper-rule-to-the-end": lambda: markdown(end_table(filed("paper-rule"))),
        "paper-rule-map": lambda: titled(map_tables([f.record for f in filed("paper-rule") if is_map(f.record.spec)])),
        "paper-rule-constants": lambda: markdown(constants_table()),
        "kappa-ratios": lambda: titled(EXPERIMENTS["kappa-ratios"].section(filed("kappa-ratios")).tables),
    }


def titled(tables: list[TableData] | tuple[TableData, ...], without: tuple[str, ...] = ()) -> str:
    """Some tables one below the other, each under its title."""
    return "\n".join(f"**{table.title}**\n\n{markdown(table, without)}" for table in tables)

"""The tables and pictures that pages can show, by name; `pathsgd tables` makes them from records.

every-cell, every-command        every cell of the paper, with sizes or with commands
paper-rule-to-the-end, -curves   the paper's own rule until solved, or for a million steps
paper-rule-map                   its readings, bounds and rates
paper-rule-constants             measured anew, without records
NAME                             the tables of an experiment
compare-TABLE                    one kind of table of the comparison
growth-lengths, -before          the adding problem at full length, as far as it has been run
growth-looks, growth-trials      what looks know of a rate, and what was tried against spikes
default-rate                     PathAdam at three rates, wherever it has been run at them
ingredients-commands             one run of every ingredient
runs-FOLDER                      every method in a folder of results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pathsgd_lab.experiments import EXPERIMENTS, adding, compare_tables, growth
from pathsgd_lab.experiments.default_rate import default_rate_table
from pathsgd_lab.experiments.every_cell import every_cell
from pathsgd_lab.experiments.ingredients import commands_table
from pathsgd_lab.experiments.paper_rule import (
    constants_table,
    curve_table,
    end_table,
    is_map,
    map_tables,
)
from pathsgd_lab.report.markdown import markdown
from pathsgd_lab.report.model import TableData
from pathsgd_lab.report.pictures import heat_picture, line_picture
from pathsgd_lab.report.sweeps import method_table
from pathsgd_lab.sweep.results import Filed, ResultsFolder

NOT_ON_A_PAGE = (
    "command",
    "seconds",
    "seconds of one core",
    "ms per step",
    "library against reference",
)


def page_tables(results: Path) -> dict[str, Callable[[], str]]:
    """Every table that a page can name, to be made when it is asked for."""
    found: dict[str, Callable[[], str]] = {
        "every-cell": lambda: titled(every_cell(results), without=("command",)),
        "every-command": lambda: titled(
            every_cell(results), without=("units, of the paper's", "steps", "seeds")
        ),
        "paper-rule-to-the-end": lambda: markdown(end_table(_filed(results, "paper-rule"))),
        "paper-rule-curves": lambda: markdown(curve_table(_filed(results, "paper-rule"))),
        "paper-rule-map": lambda: _map(_filed(results, "paper-rule")),
        "paper-rule-constants": lambda: markdown(constants_table()),
        "growth-lengths": lambda: _lengths(_filed(results, "growth")),
        "growth-lengths-before": lambda: _lengths(
            ResultsFolder(results / "growth-open-room").filed()
        ),
        "growth-lengths-ended": lambda: _lengths(ResultsFolder(results / "growth-ended").filed()),
        "growth-looks": lambda: markdown(growth.looks_table(results / "growth-looks.json")),
        "growth-trials": lambda: markdown(growth.trials_table(results / "growth-trials.json")),
        "default-rate": lambda: markdown(default_rate_table(results)),
        "ingredients-commands": lambda: markdown(commands_table()),
        "runs-adding-table": lambda: _timed(_filed(results, "adding")),
    }
    found |= {name: partial(_experiment, results, name) for name in EXPERIMENTS}
    found |= {
        f"compare-{name}": partial(_compared, results, name) for name in compare_tables.TABLES
    }
    folders = [
        path.name for path in results.glob("*/") if path.name not in ("kappa-ratios", "cost")
    ]
    return found | {f"runs-{folder}": partial(_runs, results, folder) for folder in folders}


def page_pictures(results: Path) -> dict[str, Callable[[Path], None]]:
    """Pictures of pages by their file's name, each to be drawn to a path."""
    records = [f.record for f in _filed(results, "compare")]
    return {
        "compare-rates.svg": lambda path: heat_picture(
            compare_tables.rates_heat(records),
            path,
            "mean excess in per cent: 0 is the best run of all, 100 chance",
        ),
        "compare-profile.svg": lambda path: line_picture(
            compare_tables.profile_figure(records), path
        ),
    }


def titled(tables: Sequence[TableData], without: Sequence[str] = NOT_ON_A_PAGE) -> str:
    """Some tables one below the other, each under its title."""
    return "\n".join(f"**{table.title}**\n\n{markdown(table, without)}" for table in tables)


def _filed(results: Path, name: str) -> list[Filed]:
    return ResultsFolder(results / name, EXPERIMENTS[name].read).filed()


def _map(filed: Sequence[Filed]) -> str:
    return titled(map_tables([f.record for f in filed if is_map(f.record.spec)]))


def _timed(filed: Sequence[Filed]) -> str:
    chosen = [f for f in filed if adding.part(f.record.spec) == "table"]
    lengths = sorted({f.record.spec.task.length for f in chosen})
    return titled([adding.paper_table(length, chosen) for length in lengths])


def _lengths(filed: Sequence[Filed]) -> str:
    table = growth.lengths_table([f.record for f in filed], paper_start=False)
    run = tuple(row for row in table.rows if any(entry.records for entry in row))
    return markdown(replace(table, rows=run))


def _experiment(results: Path, name: str) -> str:
    return titled(EXPERIMENTS[name].section(_filed(results, name)).tables)


def _compared(results: Path, name: str) -> str:
    return titled(compare_tables.TABLES[name]([f.record for f in _filed(results, "compare")]))


def _runs(results: Path, folder: str) -> str:
    return markdown(method_table(ResultsFolder(results / folder).filed()), NOT_ON_A_PAGE)

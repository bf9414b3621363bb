"""What the two character-level studies share: systems, grids, tables.

The paper's systems: plain nets with 2048 units, an LSTM with 1024, Adam or Path-Adam, rates 1e-3,
5e-4 and 1e-4.  At
``laptop`` scale the sizes are a quarter of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pathsgd_lab.report.model import Entry, Section, TableData
from pathsgd_lab.report.select import best_group, spread
from pathsgd_lab.report.tables import (
    ComparisonRow,
    Style,
    comparison,
    curves,
    share_of_gap,
    sources,
)
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import RunSpec, settings
from pathsgd_lab.studies.study import Scale, at_best_rate, cells, over, run, seed_by_seed, uses
from pathsgd_lab.sweep.cells import RunCell
from pathsgd_lab.sweep.results import Filed

TO_THE_LETTER = (("clip", 0.0), ("refresh_every", 1), ("beta2", 0.999))
"""The paper's Path-Adam as printed: Adam with its usual beta2 on grad / kappa, kappa at every step,
no bound."""
CLIPPED = (("clip", 1.0), ("refresh_every", 10), ("beta2", 0.99))
"""The same idea with what PathAdam has: a bound on the dual norm, kappa every tenth step, a shorter
memory."""
PAPER_RATES = (1e-3, 5e-4, 1e-4)
"""The paper's grid on text."""


@dataclass(frozen=True)
class CharacterRow:
    """A system of the table."""

    label: str
    system: str
    optimiser: str
    rates: tuple[float, ...]
    paper: float | None
    gated: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    told_by: tuple[tuple[str, Any], ...] = ()
    """Settings that tell this row from others of the same system and optimiser."""

    def wanted(self, spec: RunSpec) -> bool:
        """Whether a run belongs to this row."""
        known = dict(settings(spec))
        return uses(self.system, self.optimiser)(spec) and all(
            known[name] == value for name, value in self.told_by
        )


@dataclass(frozen=True)
class CharacterTable:
    """One column of the paper's Table 3."""

    task: str
    name: str
    title: str
    paper_ref: str
    rows: tuple[CharacterRow, ...]
    sizes: dict[Scale, dict[str, Any]]
    """Per scale: settings of all runs, and hidden, gated_hidden, grid and final (budgets), seeds
    (of the finals)."""
    next_lower: bool = True
    """Whether the longer runs are made at the next lower rate as well."""

    def specs(self, scale: Scale) -> list[RunSpec]:
        """Every system at every rate, for a short while."""
        size = dict(self.sizes[scale])
        special = {
            name: size.pop(name) for name in ("hidden", "gated_hidden", "grid", "final", "seeds")
        }
        specs = []
        for row in self.rows:
            hidden = special["gated_hidden"] if row.gated else special["hidden"]
            changes = {
                **size,
                "hidden": hidden,
                **special["grid"],
                "decay": "linear",
                **dict(row.settings + row.told_by),
            }
            rates = row.rates if scale != "smoke" else row.rates[:2]
            specs += over(run(self.task, row.system, row.optimiser, **changes), lr=rates)
        return specs

    def first_stage(self, scale: Scale, records: Sequence[Record]) -> list[RunCell]:
        """The grid of rates."""
        return cells(self.specs(scale), self.paper_ref)

    def second_stage(self, scale: Scale, records: Sequence[Record]) -> list[RunCell]:
        """Each system for longer, at its best rate and, where asked for, the next lower one."""
        return cells(self.finals(scale, records), self.paper_ref)

    def third_stage(self, scale: Scale, records: Sequence[Record]) -> list[RunCell]:
        """The better of each system's longer runs on further seeds, seed by seed."""
        best = at_best_rate(self.finals(scale, records), records)
        return cells(seed_by_seed(best, range(1, self.sizes[scale]["seeds"])), self.paper_ref)

    def finals(self, scale: Scale, records: Sequence[Record]) -> list[RunSpec]:
        """The longer runs that the grid's records ask for, on one seed."""
        final = self.sizes[scale]["final"]
        return at_best_rate(self.specs(scale), records, next_lower=self.next_lower, **final)

    def table_rows(self) -> list[ComparisonRow]:
        """Rows for a comparison."""
        return [ComparisonRow(row.label, row.paper, row.wanted) for row in self.rows]

    def section(self, filed: Sequence[Filed]) -> Section:
        """Test BPC, share of the gap that is closed, and curves; one set per number of units."""
        tables, figures = [], []
        sizes = sorted({units(f.record.spec) for f in filed})
        for size in sizes or [self.sizes["laptop"]["hidden"]]:
            chosen = [f for f in filed if units(f.record.spec) == size]
            tables.append(
                comparison(
                    f"Test bits per character, {size} units", self.table_rows(), chosen, Style(3)
                )
            )
            tables.append(self.gap_table(chosen, size))
            figures.append(
                curves(
                    f"Validation, {size} units",
                    self.table_rows(),
                    chosen,
                    x="epoch",
                    y_label="bits per character",
                )
            )
        return Section(
            self.name,
            self.title,
            "Test bits per character. Each system trained with the rate falling linearly from the "
            "one that was best on the validation text after a short run"
            + (
                ", and from the next lower one; the better of the two counts."
                if self.next_lower
                else "."
            ),
            tables=tuple(tables),
            figures=tuple(figures),
            sources=sources(filed),
        )

    def gap_table(self, filed: Sequence[Filed], size: int) -> TableData:
        """(plain - path) / (plain - LSTM) as in the paper's table; ours from equally long runs."""
        printed = {row.label: row.paper for row in self.rows}
        lines = []
        for row in self.rows:
            if row.label.startswith("RNN-Path"):
                values = [printed.get(label) for label in ("RNN-ReLU", row.label, "LSTM")]
                paper = "—" if None in values else f"{share_of_gap(*values):.0f} %"  # type: ignore[arg-type]
                lines.append((Entry(row.label), Entry(paper), self.gap_closed(row.label, filed)))
        columns = ("method", "paper", "ours")
        return TableData(
            f"Share of the gap between RNN-ReLU and LSTM closed, {size} units",
            columns,
            tuple(lines),
        )

    def gap_closed(self, label: str, filed: Sequence[Filed]) -> Entry:
        """The share from the longest runs that all three systems have."""
        wanted = {row.label: row.wanted for row in self.table_rows()}
        budgets = {
            (f.record.spec.budget.epochs or 0.0, f.record.spec.budget.steps or 0) for f in filed
        }
        for epochs, steps in sorted(budgets, reverse=True):
            alike = [f.record for f in filed if f.record.spec.budget.epochs == (epochs or None)]
            alike = [record for record in alike if record.spec.budget.steps == (steps or None)]
            found = [
                [r for r in alike if wanted[name](r.spec)] for name in ("RNN-ReLU", label, "LSTM")
            ]
            if all(found):
                chosen = [best_group(records) for records in found]
                plain, path, gated = (spread([r.test for r in group]).mean for group in chosen)
                keys = tuple(record.hash for group in chosen for record in group)
                closed = (
                    f"{share_of_gap(plain, path, gated):.0f} %"
                    if gated < plain
                    else "no gap: the LSTM is behind"
                )
                return Entry(closed, keys)
        return Entry("—")


def units(spec: RunSpec) -> int:
    """Units of the plain nets that a run is compared with: gated ones have half as many."""
    hidden = spec.system.hidden or spec.task.paper.hidden
    return 2 * hidden if spec.system.name in ("lstm", "gru") else hidden

"""Sections for sweeps: a table of methods, and a robustness map."""

from __future__ import annotations

from collections.abc import Sequence

from pathsgd_lab.flags import command_of
from pathsgd_lab.report.model import Entry, MapData, Section, TableData
from pathsgd_lab.report.robustness import VERDICTS, robustness_map, row_labels, verdict
from pathsgd_lab.report.select import groups, spread
from pathsgd_lab.report.tables import sources
from pathsgd_lab.run.spec import settings
from pathsgd_lab.sweep.results import Filed


def sweep_section(
    name: str, filed: Sequence[Filed], *, shown: Sequence[str] | None = None
) -> Section:
    """What a folder of runs shows; ``shown``: see ``row_labels``."""
    tasks = sorted({f.record.spec.task.title for f in filed})
    rates = {dict(settings(f.record.spec)).get("lr") for f in filed}
    maps = (
        (MapData("Learning rates and seeds", robustness_map([f.record for f in filed])),)
        if len(rates) > 1
        else ()
    )
    return Section(
        name,
        name,
        f"A sweep: {', '.join(tasks)}.",
        tables=(method_table(filed, shown),) if filed else (),
        maps=maps,
        sources=sources(filed),
    )


def method_table(filed: Sequence[Filed], shown: Sequence[str] | None = None) -> TableData:
    """One row per group over seeds; ``shown``: see ``row_labels``."""
    records = [f.record for f in filed]
    labels = {
        record.hash: label
        for record, label in zip(records, row_labels(records, shown), strict=True)
    }
    rows = []
    for group in groups(records).values():
        keys = tuple(record.hash for record in group)
        rate = dict(settings(group[0].spec)).get("lr")
        counts = [verdict(record) for record in group]
        rows.append(
            (
                Entry(labels[group[0].hash]),
                Entry("—" if rate is None else f"{rate:g}"),
                Entry(str(len(group))),
                Entry(" / ".join(str(counts.count(v)) for v in VERDICTS)),
                Entry(f"{spread([record.test for record in group]).mean:.4g}", keys),
                Entry(f"{spread([record.cpu_seconds for record in group]).mean:.1f}"),
                Entry(command_of(group[0].spec)),
            )
        )
    metric = records[0].spec.task.metric
    columns = (
        "method",
        "learning rate",
        "seeds",
        " / ".join(VERDICTS),
        f"test {metric}",
        "seconds",
        "command",
    )
    return TableData(
        "Runs", columns, tuple(sorted(rows, key=lambda row: (row[0].text, row[1].text)))
    )

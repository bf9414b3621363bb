"""docs/models.md from the zoo's records and entry names; needs none of the zoo's packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoo import fields, vision, written
from zoo.faults import HEAVY, faults

PAGE = Path(__file__).parent.parent / "docs" / "models.md"

HEAD = """\
# Models that other people wrote

Each model below is built as its package builds it, from random weights, and trained for a number \
of steps (fewer where
one takes seconds) at a rate of {rate:g} (VGG, with which Adam explodes there, too: {lower:g}) by \
`PathAdam` at its
defaults and by Adam, from the same weights on the same few batches. `make zoo` makes the records \
in zoo/records.jsonl,
`python -m zoo --page` makes this page of them.

A model is **clean** if its loss falls and stays finite, no weight is over 10 times Adam's \
largest, every parameter
that has a gradient moves, and a randomly rescaled twin trains alike (not tried over {heavy:,} \
parameters). {clean} of
{trained} trained models are clean; {refused} are refused, each with its reason; {missing} have \
not been run yet.
Costs are ratios to Adam's whole training step (forward, backward, step) measured in turn in one \
process; the first
step includes recording the model. The metric is the one that was the default when the model was \
run.
"""


def load(table: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []


def made_of(records: list[dict[str, Any]]) -> str:
    trained = [r for r in records if "loss" in r]
    counts = {
        "heavy": HEAVY,
        "rate": max((r["rate"] for r in trained), default=0.0),
        "lower": min((r["rate"] for r in trained), default=0.0),
        "clean": sum(not faults(r) for r in trained),
        "trained": len(trained),
        "refused": sum("refused" in r for r in records),
        "missing": len(_missing(records)),
    }
    return "\n".join(
        [HEAD.format(**counts), *_trained(records), *_refused(records), *_not_run(records)]
    )


def _trained(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| field | model | parameters | free nodes | metric | steps | verdict | loss, first | "
        "PathAdam | Adam | largest weight | Adam's | step | first step |",
        "| --- | --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | "
        "---: |",
    ]
    for r in (r for r in sorted(records, key=_order) if "refused" not in r):
        if "failed" in r:
            lines.append(
                f"| {r['field']} | {r['model']} | | | | | failed: {r['failed']} | | | | | | | |"
            )
            continue
        loss, weight, cost = r["loss"], r["largest_weight"], r["cost"]
        lines.append(
            f"| {r['field']} | {r['model']} | {r['parameters']:,} | {r['free_nodes']:,} | "
            f"{r['metric']} | {r['steps']} | {verdict(r)} | {loss['first']:.3g} | "
            f"{loss['path']:.3g} | {loss['adam']:.3g} | {weight['path']:.3g} | "
            f"{weight['adam']:.3g} | {cost['step']:.1f} | {cost['first']:.0f} |"
        )
    return [*lines, ""]


def _refused(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Refused",
        "",
        "| field | model | operation | where | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    for r in (r for r in sorted(records, key=_order) if "refused" in r):
        why = r["refused"]
        lines.append(
            f"| {r['field']} | {r['model']} | `{why['operation']}` | {why['where']} | {why['why']} "
            "|"
        )
    return [*lines, ""]


def _missing(records: list[dict[str, Any]]) -> list[str]:
    done = {r["model"] for r in records}
    return [
        e.name
        for e in (*written.entries(), *fields.entries(), *vision.entries())
        if e.name not in done
    ]


def _not_run(records: list[dict[str, Any]]) -> list[str]:
    missing = _missing(records)
    return ["## Not run", "", f"Without a record: {', '.join(missing)}.", ""] if missing else []


def _order(record: dict[str, Any]) -> tuple[str, str]:
    return record["field"], record["model"]


def verdict(record: dict[str, Any]) -> str:
    if "refused" in record:
        return f"refused: {record['refused']['operation']}"
    return "; ".join(faults(record)) or "clean"

"""python -m zoo [names]: train models and write records; python -m zoo --page: docs/models.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records.jsonl"
"""One line a model, in the order of their names."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help="parts of the names of the models to train; all where none is given",
    )
    parser.add_argument("--missing", action="store_true", help="only those without a record")
    parser.add_argument(
        "--page", action="store_true", help="make docs/models.md of the records that are there"
    )
    arguments = parser.parse_args()
    from zoo import page

    if arguments.page:
        page.PAGE.write_text(page.made_of(page.load(RECORDS)))
        return
    import torch

    from zoo import fields, run, vision, written

    torch.set_num_threads(1)
    records = {record["model"]: record for record in page.load(RECORDS)}
    entries = [*written.entries(), *fields.entries(), *vision.entries()]
    for entry in sorted(entries, key=lambda entry: -entry.steps):  # the cheap ones first
        wanted = not arguments.names or any(part in entry.name for part in arguments.names)
        if not wanted or (arguments.missing and entry.name in records):
            continue
        try:
            record = run.record(entry)
        except Exception as error:
            record = {
                "field": entry.field,
                "model": entry.name,
                "failed": f"{type(error).__name__}: {error}"[:500],
            }
        records[entry.name] = record
        keep(records)
        print(entry.name, page.verdict(record), flush=True)


def keep(records: dict[str, dict[str, Any]]) -> None:
    """Write all of them in one step."""
    lines = [json.dumps(records[name]) + "\n" for name in sorted(records)]
    new = RECORDS.with_suffix(".tmp")
    new.write_text("".join(lines))
    new.replace(RECORDS)


if __name__ == "__main__":
    main()

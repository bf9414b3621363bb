"""python -m zoo [names]: train the models and write their records; python -m zoo --page: docs/models.md from them."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

RECORDS = Path(__file__).parent / "records"


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
    RECORDS.mkdir(parents=True, exist_ok=True)
    entries = [*written.entries(), *fields.entries(), *vision.entries()]
    for entry in sorted(entries, key=lambda entry: -entry.steps):  # the cheap ones first
        file = RECORDS / (re.sub(r"[^a-z0-9]+", "-", entry.name.lower()).strip("-") + ".json")
        wanted = not arguments.names or any(part in entry.name for part in arguments.names)
        if not wanted or (arguments.missing and file.exists()):
            continue
        try:
            record = run.record(entry)
        except Exception as error:
            record = {
                "field": entry.field,
                "model": entry.name,
                "failed": f"{type(error).__name__}: {error}"[:500],
            }
        file.write_text(json.dumps(record, indent=1) + "\n")
        print(entry.name, page.verdict(record), flush=True)


if __name__ == "__main__":
    main()

"""Cases per fuzz test: a few hundred in all, or PATHSGD_FUZZ of them (`make fuzz`: 10,000).

``python -m support.fuzz`` (from tests/) prints the table of docs/reliability.md from the last full
run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("PATHSGD_FUZZ", "400"))


def fuzzed(share: float, cases_each: int = 1) -> settings:
    """Settings for a test that tries its share of all cases, `cases_each` in one example."""
    return settings(
        max_examples=max(1, round(CASES * share / cases_each)),
        suppress_health_check=list(HealthCheck),
    )


RECORD = Path(__file__).parents[1] / "fuzz" / "counts.json"
WHAT = {
    "test_nets": "random nets, measured and rescaled, against path enumeration",
    "test_optimisers": "sequences of operations on an optimiser: step, load, replace, "
    "lay out anew, freeze, pickle",
    "test_native": "calls of the kernel under address and undefined-behaviour sanitizers, "
    "against plain loops",
    "test_files": "damaged files of every kind that the lab reads",
}


def table() -> str:
    """What was tried, and how much of it failed."""
    record = json.loads(RECORD.read_text())
    rows = [
        f"| {what} | {record[name]['cases']:,} | {record[name]['failed']} |"
        for name, what in WHAT.items()
        if name in record
    ]
    return "\n".join(["| what | cases | tests that failed |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())

"""What the comparison's tables have in common: starts, and how their entries are written."""

from __future__ import annotations

import math
from collections.abc import Iterable

from studies.compare.contest import BADLY_SCALED

from pathsgd_lab.report.model import Entry
from pathsgd_lab.run.record import Record

STARTS = {"balanced": 1.0, "badly scaled": BADLY_SCALED}
NOTHING = Entry("—")


def figure(value: float) -> str:
    """A metric in three digits."""
    return f"{value:.3g}" if math.isfinite(value) else "diverged"


def percent(value: float, count: int, of: int) -> Entry:
    """A mean excess in per cent, with how many problems it is over where it is not all of them."""
    if count == 0:
        return NOTHING
    return Entry(f"{100 * value:.1f}" + (f" ({count} of {of} problems)" if count < of else ""))


def keys(records: Iterable[Record]) -> tuple[str, ...]:
    """The keys of some records."""
    return tuple(record.hash for record in records)

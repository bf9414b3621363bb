"""The bar that a record is held against."""

from __future__ import annotations

import math
from typing import Any

HEAVY = 40_000_000
"""Larger models get no rescaled twin: several float64 copies need too much memory."""


def faults(record: dict[str, Any]) -> list[str]:
    """What is wrong with a record, by the zoo's own bar."""
    if "refused" in record:
        return []
    if "failed" in record:
        return [record["failed"]]
    loss, weight = record["loss"], record["largest_weight"]
    found = []
    if not math.isfinite(loss["path"]) or record["largest_loss"] > 100 * max(loss["first"], 1):
        found.append("explodes")
    if weight["path"] > 10 * weight["adam"]:
        found.append("a weight over 10 times Adam's largest")
    if record["never_moved"]:
        found.append(f"never moved: {', '.join(record['never_moved'][:3])}")
    if not loss["path"] < loss["first"]:
        found.append("the loss does not fall")
    if not record.get("invariance", {"ok": True})["ok"]:
        found.append("not invariant")
    return found

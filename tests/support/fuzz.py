"""How many cases the fuzz tests try: a few hundred in all, or as many as PATHSGD_FUZZ says (`make fuzz`: 10,000)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("PATHSGD_FUZZ", "400"))


def fuzzed(share: float, cases_each: int = 1) -> settings:
    """Settings for a test that tries its share of all cases, `cases_each` of them in one example of hypothesis."""
    return settings(
        max_examples=max(1, round(CASES * share / cases_each)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize="PATHSGD_FUZZ" not in os.environ,  # the same few hundred every time
    )

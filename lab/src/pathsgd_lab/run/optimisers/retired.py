"""Optimisers of old runs whose code is gone: their settings can be read and shown, but not run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from pathsgd_lab.errors import RunError
from pathsgd_lab.run.optimisers.base import Optimiser, Stepper

RETIRED = {"step_growth"}
"""Settings that only old runs have: step_growth was a fixed bound on steps, a log factor."""
REMARK = "retired code, cannot be run again"


class RetiredOptimiser(Optimiser):
    """An optimiser with a setting that no code reads any more."""

    def stepper(self, *arguments: Any) -> Stepper:
        """Refuse."""
        raise RunError(f"{self.name} with {', '.join(sorted(RETIRED))}: {REMARK}")


@functools.cache
def retired(kind: type[Optimiser]) -> type[Optimiser]:
    """``kind`` with the retired settings as well."""
    if issubclass(kind, RetiredOptimiser):
        return kind
    return dataclasses.make_dataclass(
        kind.__name__,
        [(name, float, dataclasses.field(default=0.0)) for name in sorted(RETIRED)],
        bases=(RetiredOptimiser, kind),
        frozen=True,
    )

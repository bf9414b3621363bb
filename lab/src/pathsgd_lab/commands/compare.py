"""``pathsgd compare --scale laptop``: the path optimisers against what people use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathsgd_lab import flags
from pathsgd_lab.commands.reproduce import StudyOptions, carry_out


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StudyOptions):
    """Train small ReLU nets with many optimisers, from balanced and from badly scaled starts.

    Records are written as they come, and what has a record is not run again: stop whenever you
    like, and the same command goes on. `pathsgd tables` writes the tables of studies/compare.
    """


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    return carry_out("compare", flags.parse(CompareOptions, arguments, "pathsgd compare"))

"""How many layers of a fully_shard model are whole at once while a step measures its metric.

python benchmarks/whole_layers.py
    prints the table of docs/scale.md; needs the folder tests/ beside it
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.memory import KINDS, peaks_of
from support.processes import in_processes

WORLD = 4


def main() -> None:
    """Print the table."""
    print(
        "| eight equal layers, four processes | whole at once, in layers | collective operations "
        "of the step |"
    )
    print("|---|---|---|")
    for kind in KINDS:
        results = in_processes(WORLD, peaks_of, kind)
        # gloo frees a gathered layer with a delay: the step with the smallest peak shows what is
        # needed.
        least = max(min(peaks) for peaks, _ in results)
        print(f"| {kind} | {least:.0f} | {results[0][1]} |")


if __name__ == "__main__":
    main()

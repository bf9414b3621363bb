"""Correct records that state a bound on growth which was not in force.

The paper's own rules (path-adam-paper, and path-sgd with rho 0 and clip 0) have no bound on growth. Their records once
stated the default, 0.3, all the same. Such a record gets step_growth 0, the hash of its corrected settings, and the
file name that goes with the hash; nothing else in it changes. Running this again changes nothing.

    python results/correct_growth.py [RESULTS]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pathsgd.lab.files import write_text
from pathsgd.lab.run.spec import spec_from_json, spec_hash

SPEC, HASH = '  "spec": ', '  "hash": '


def states_unused_growth(optimiser: dict[str, Any]) -> bool:
    """Whether these settings of an optimiser state a bound on growth that its rule does not have."""
    literal = (
        optimiser["name"] in ("path-sgd", "path-sgd-both")
        and optimiser["rho"] == optimiser["clip"] == 0
    )
    return (literal or optimiser["name"] == "path-adam-paper") and optimiser["step_growth"] != 0


def correct(path: Path) -> Path | None:
    """Correct one file; its new path, or None if there was nothing to do."""
    lines = path.read_text("utf-8").split("\n")
    specs = [i for i, line in enumerate(lines) if line.startswith(SPEC)]
    if not specs:
        return None  # a measurement, which has no optimiser
    content = json.loads(lines[specs[0]].removeprefix(SPEC).removesuffix(","))
    if not states_unused_growth(content["optimiser"]):
        return None
    content["optimiser"]["step_growth"] = 0.0
    spec = spec_from_json(content)
    lines[specs[0]] = f"{SPEC}{json.dumps(content)},"
    lines[next(i for i, line in enumerate(lines) if line.startswith(HASH))] = (
        f'{HASH}"{spec_hash(spec)}",'
    )
    corrected = path.with_name(f"{spec.slug}.json")
    if corrected.exists():
        raise SystemExit(
            f"{path} and {corrected} would be records of the same run: keep one of them"
        )
    write_text(corrected, "\n".join(lines))
    path.unlink()
    return corrected


def main(results: Path) -> None:
    """Correct every record below a directory."""
    found = [new for path in sorted(results.rglob("*.json")) if (new := correct(path)) is not None]
    print(f"{len(found)} records corrected in {results}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

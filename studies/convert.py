"""Make the tables of runs out of the JSON files, one a run, that they were kept in before.

Was run once, in the tree of the commit before this one's:

    python studies/convert.py RESULTS STUDIES

It is kept to show what was changed.  Each run is one line of STUDIES/NAME/runs.jsonl.gz, in the
order of the files' names, and nothing of it is lost: ``check`` takes back what ``mended`` did and
compares with the file.  What ``mended`` changes:

- format 2; names of optimisers: path-adam-absolute is path-adam, what was path-adam is
  path-adam-relative;
- settings that records left out are written out, with the values that the runs had;
- step_growth, the fixed bound on steps, is left out where it was 0 (no bound);
- the hash is that of the settings as they are written;
- remarks say that a run needs code that is gone, or that its commit does not exist or was not all.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pathsgd_lab.run.optimisers.retired import REMARK
from pathsgd_lab.run.record import record_from_json
from pathsgd_lab.run.spec import json_hash, spec_from_json, spec_to_json
from pathsgd_lab.studies import Studies

NAMES = {"path-adam-absolute": "path-adam", "path-adam": "path-adam-relative"}
GONE = "the commit does not exist"
UNKNOWN = "the commit was not noted"
CHANGED = "the source had changes beyond the commit"
SUPERSEDED = (
    "adding-100-rate-0.001",
    "compare-open-room",
    "growth-ended",
    "growth-limit-2",
    "growth-open-room",
    "growth-short-corrections",
)
"""Folders that were left out, with the tables made of them."""


def main(results: Path, studies: Path) -> None:
    """Convert every folder that has a study."""
    commits, names = known_commits(results), Studies(studies)
    for folder in sorted(path for path in results.glob("*/") if path.name not in SUPERSEDED):
        if not (files := sorted(folder.glob("*.json"))):
            continue
        old = [json.loads(path.read_text("utf-8")) for path in files]
        read = names[folder.name].read
        lines = [line(mended(run, commits)) for run in old]
        table = studies / folder.name / "runs.jsonl.gz"
        table.write_bytes(gzip.compress("".join(lines).encode(), 9, mtime=0))
        check(old, table, read)
        print(f"{folder.name}: {len(old)} runs, {table.stat().st_size:,} bytes")


def line(run: dict[str, Any]) -> str:
    """One run in one line."""
    return json.dumps(run) + "\n"


def mended(run: dict[str, Any], commits: set[str]) -> dict[str, Any]:
    """A run in format 2."""
    new = json.loads(json.dumps(run)) | {"version": 2, "remarks": remarks(run, commits)}
    if "spec" in run:
        new["spec"] = settings(new["spec"])
        new["hash"] = json_hash(new["spec"])
    return new


def settings(spec: dict[str, Any]) -> dict[str, Any]:
    """Settings with today's names, every one of them."""
    optimiser = spec["optimiser"]
    optimiser["name"] = NAMES.get(optimiser["name"], optimiser["name"])
    if "step_growth" in optimiser:  # before the bound on growth rates there was this one only
        optimiser.setdefault("growth_limit", 0.0)
    if optimiser.get("step_growth") == 0.0:
        del optimiser["step_growth"]
    return spec_to_json(spec_from_json(spec))


def remarks(run: dict[str, Any], commits: set[str]) -> list[str]:
    """What limits the use of a run."""
    commit = run["commit"].rstrip("+")
    found = [REMARK] if run.get("spec", {}).get("optimiser", {}).get("step_growth") else []
    if not commit:
        found.append(UNKNOWN)
    elif not any(known.startswith(commit) for known in commits):
        found.append(GONE)
    return [*found, CHANGED] if run["commit"].endswith("+") else found


def check(old: list[dict[str, Any]], table: Path, read: Any) -> None:
    """The table has every run, in order, and nothing of any is lost."""
    with gzip.open(table, "rt", encoding="utf-8") as file:
        new = [json.loads(text) for text in file]
    assert len(new) == len(old), (len(new), len(old))
    for before, after in zip(old, new, strict=True):
        read(after)
        back = taken_back(before, after)
        assert back == before and list(back) == list(before), before["hash"]


def taken_back(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """A run of format 2 as it was; only names need ``before`` to undo what was rewritten."""
    back = {name: after[name] for name in before}
    if "version" in before:
        back["version"] = 1
    if "spec" not in before:
        return back
    back["hash"] = before["hash"]
    back["spec"] = {
        name: trimmed(after["spec"][name], value) for name, value in before["spec"].items()
    }
    optimiser, was = back["spec"]["optimiser"], before["spec"]["optimiser"]
    inverse = {new: old for old, new in NAMES.items()}
    optimiser["name"] = inverse.get(optimiser["name"], optimiser["name"])
    if "step_growth" in was:
        kept = after["spec"]["optimiser"].get("step_growth", 0.0)
        back["spec"]["optimiser"] = {
            name: kept if name == "step_growth" else optimiser[name] for name in was
        }
    return back


def trimmed(value: Any, before: Any) -> Any:
    """Without the settings that were filled in; a retired one is put back by the caller."""
    if not isinstance(before, dict):
        return value
    return {name: value[name] for name in before if name in value}


def known_commits(repository: Path) -> set[str]:
    """Every commit that a branch or tag leads to."""
    command = ["git", "-C", str(repository), "rev-list", "--branches", "--tags"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


if __name__ == "__main__":
    assert record_from_json
    main(*map(Path, sys.argv[1:]))

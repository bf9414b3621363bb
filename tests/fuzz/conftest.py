"""Counts the cases of `make fuzz` in counts.json, the source of docs/reliability.md's table."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.fuzz import CASES, RECORD


def planned(item: Any) -> int:
    """How many cases a test tries: hypothesis's examples, or what the test says of itself."""
    settings = getattr(item.obj, "_hypothesis_internal_use_settings", None)
    return getattr(item.obj, "cases", 1 if settings is None else settings.max_examples)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reports carry the count, from other processes too."""
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.user_properties.append(("cases", planned(item)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """If PATHSGD_FUZZ asks for many cases, the record of the files that were run is rewritten."""
    if "PATHSGD_FUZZ" not in os.environ or hasattr(session.config, "workerinput"):
        return
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    tests, cases, failed = Counter[str](), Counter[str](), Counter[str]()
    for outcome in ("passed", "failed", "error"):
        for report in reporter.stats.get(outcome, []):
            name = Path(report.fspath).stem
            tests[name] += 1
            cases[name] += dict(report.user_properties).get("cases", 0)
            failed[name] += outcome != "passed"
    for name in tests:
        known[name] = {
            "asked": CASES,
            "cases": cases[name],
            "failed": failed[name],
            "tests": tests[name],
        }
    RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")

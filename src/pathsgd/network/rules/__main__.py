"""The tables of docs/rules.md, from the rules themselves: python -m pathsgd.network.rules."""

from __future__ import annotations

from collections import defaultdict

from pathsgd.network.rules import REFUSED, RULES


def covered() -> str:
    """A Markdown table of all operations with a rule, those alike on one line."""
    lines = ["| operations | how paths pass |", "| --- | --- |"]
    by_summary: dict[str, list[str]] = defaultdict(list)
    for name, rule in RULES.items():
        by_summary[rule.summary].append(name)
    lines += [f"| {_listed(names)} | {summary} |" for summary, names in by_summary.items()]
    return "\n".join(lines)


def refused() -> str:
    """A Markdown table of the operations that are refused by name, one line a reason."""
    lines = ["| operations | why not, and what to do |", "| --- | --- |"]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in REFUSED.items():
        by_reason[reason].append(name)
    lines += [f"| {_listed(names)} | {reason} |" for reason, names in by_reason.items()]
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(covered(), refused(), sep="\n\n")

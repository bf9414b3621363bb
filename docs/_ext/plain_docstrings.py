"""Docstrings as this project writes them, made into reStructuredText.

indented lines after a blank one    a formula, shown as it stands
`name: what it is` at the left      an argument of the function or class
>>> ...                             an example
`code`                              code
"""

from __future__ import annotations

import inspect
import re
from typing import Any

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*)")


def rewritten(lines: list[str], arguments: set[str]) -> list[str]:
    """The lines of one docstring, block by block."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    result: list[str] = []
    for block in filter(None, blocks):
        result += [*_block(block, arguments), ""]
    return result


def _block(block: list[str], arguments: set[str]) -> list[str]:
    if block[0].startswith(">>>"):
        return block
    if block[0].startswith(" "):
        return ["::", "", *block]
    names = [_argument(line, arguments) for line in block]
    if not all(name or line.startswith(" ") for name, line in zip(names, block)):
        return [_prose(line) for line in block]
    return [
        f":param {name[1]}: {_prose(name[2])}" if name else _prose(line)
        for name, line in zip(names, block)
    ]


def _argument(line: str, arguments: set[str]) -> re.Match[str] | None:
    """The line's match if it starts with names of arguments."""
    matched = ARGUMENT.match(line)
    return matched if matched and set(matched[1].split(", ")) <= arguments else None


def _prose(line: str) -> str:
    """Nothing in it is markup but `code`."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return _escaped(line)
    return "".join(f"``{part}``" if k % 2 else _escaped(part) for k, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([\\*|`])|(?<=\w)_(?=\W|$)", lambda m: "\\" + m[0], text)


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's hook: change the lines in place."""
    try:
        arguments = set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        arguments = set()
    lines[:] = rewritten(lines, arguments)


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}

"""Links to files of the repository that the site does not have are shown as the files' names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def process(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx's hook: edit the page in place; links to missing files stay and are errors."""
    docs = Path(app.srcdir).resolve()
    folder = (docs / docname).parent

    def renamed(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return match[0]
        name = target.relative_to(docs.parent)
        return f"{match[1]} (`{name}`)" if match[1] != str(name) else f"`{name}`"

    source[0] = LINK.sub(renamed, source[0])


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("source-read", process)
    return {"parallel_read_safe": True}

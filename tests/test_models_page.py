"""docs/models.md is what the zoo's records make of it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from zoo import page
from zoo.__main__ import RECORDS


def test_the_page_is_made_of_the_records() -> None:
    assert page.PAGE.read_text() == page.made_of(page.load(RECORDS)), (
        "make it anew with `python -m zoo --page`"
    )

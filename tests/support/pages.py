"""A page whose every text would be markup if it were not escaped."""

from __future__ import annotations

from pathsgd_lab.report.model import Entry, FigureData, MapData, Section, Series, Source, TableData
from pathsgd_lab.report.robustness import RobustnessMap

EVIL = """x"><img src=x onerror=alert(1)></script><script>alert(2)</script>'{{ 7*7 }}</style>"""


def section(text: str) -> Section:
    """A section whose every text is ``text``."""
    return Section(
        name=text,
        title=text,
        text=text,
        tables=(TableData(text, (text, "command"), ((Entry(text, (text,)), Entry(text)),), text),),
        figures=(
            FigureData(
                text, text, text, (Series(text, (1.0, 2.0), (float("nan"), 2.0)),), caption=text
            ),
        ),
        maps=(MapData(text, RobustnessMap((text,), (1e-3,), {(text, 1e-3): ("solved",)}), text),),
        sources=(Source(text, text, text, ((text, text),)),),
    )

"""The page: one HTML file with everything in it, plotly's script included; it needs no network.

Every number links to the record it was made from, at the end of the page.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from pathsgd.lab.report.model import (
    PALETTE,
    UNKNOWN_COLOUR,
    VERDICT_COLOURS,
    Entry,
    FigureData,
    MapData,
    Section,
    Source,
    TableData,
)
from pathsgd.lab.report.robustness import VERDICTS

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1.5rem; }
nav a { margin-right: 1.2em; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; white-space: nowrap; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
th { border-bottom: 2px solid #999; }
a { color: #0057a8; text-decoration: none; } a:hover { text-decoration: underline; }
code { font: 12px/1.4 ui-monospace, monospace; background: #f4f4f4; padding: .1em .3em; overflow-wrap: anywhere; }
td code { display: inline-block; max-width: 22rem; }
details { margin: .2rem 0; } summary { cursor: pointer; } :target { background: #fff6d6; }
.figure { height: 420px; } .note { color: #555; }
"""

LINK_SCRIPT = """
addEventListener("hashchange", open_target); addEventListener("load", open_target);
function open_target() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let e = target; e; e = e.parentElement) { if (e.tagName === "DETAILS") { e.open = true; } }
  if (target) { target.scrollIntoView(); }
}
"""


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    parts = [_section(section) for section in sections]
    links = " ".join(f'<a href="#{escape(s.name)}">{escape(s.title)}</a>' for s in sections)
    # plotly's script goes into the head once; each figure is a small call that follows its own element.
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f"<script>{get_plotlyjs()}</script><script>{LINK_SCRIPT}</script></head><body>",
            f"<h1>{escape(title)}</h1><p>{escape(introduction)}</p><nav>{links}</nav>",
            *parts,
            "</body></html>",
        ]
    )


def escape(text: str) -> str:
    """Text that is safe inside HTML."""
    return html.escape(text, quote=True)


def _section(section: Section) -> str:
    filled = [figure for figure in section.figures if figure.series]
    drawn = [_drawing(_lines(figure), f"{section.name}-figure-{i}") for i, figure in enumerate(filled)]
    drawn += [_drawing(_map(found), f"{section.name}-map-{i}") for i, found in enumerate(section.maps)]
    numbers = {source.key: f"{section.name}-{source.key[:12]}" for source in section.sources}
    tables = [_table(table, numbers) for table in section.tables]
    note = "" if section.sources else '<p class="note">No record yet.</p>'
    return "\n".join(
        [
            f'<section id="{escape(section.name)}"><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>{note}',
            *tables,
            *drawn,
            _sources(section.sources, numbers),
            "</section>",
        ]
    )


def _table(table: TableData, anchors: dict[str, str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ["<tr>" + "".join(_entry(c, n, anchors) for c, n in zip(row, table.columns)) + "</tr>" for row in table.rows]
    caption = escape(table.title) + (f'<br><span class="note">{escape(table.caption)}</span>' if table.caption else "")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="table"><table><caption>{caption}</caption>{body}</table></div>'


def _entry(cell: Entry, column: str, anchors: dict[str, str]) -> str:
    if column == "command" and cell.text != "—":
        return f"<td><details><summary>show</summary><code>{escape(cell.text)}</code></details></td>"
    known = [anchors[key] for key in cell.records if key in anchors]
    if not known:
        return f"<td>{escape(cell.text)}</td>"
    first = f'<a href="#{known[0]}">{escape(cell.text)}</a>'
    more = "".join(f' <a href="#{anchor}">·{i}</a>' for i, anchor in enumerate(known[1:], 2))
    return f"<td>{first}{more}</td>"


def _sources(sources: Sequence[Source], anchors: dict[str, str]) -> str:
    if not sources:
        return ""
    entries = []
    for source in sources:
        facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in source.facts)
        entries.append(
            f'<details id="{anchors[source.key]}"><summary><code>{escape(source.path)}</code></summary>'
            f"<p><code>{escape(source.command)}</code></p><table>{facts}</table></details>"
        )
    return f"<details><summary>{len(sources)} records</summary>" + "\n".join(entries) + "</details>"


def _drawing(figure: go.Figure, identity: str) -> str:
    content = figure.to_plotly_json()
    data, layout = (json.dumps(_plain(content[part])) for part in ("data", "layout"))
    # No label may end the script element or begin another.
    data, layout = data.replace("<", "\\u003c"), layout.replace("<", "\\u003c")
    call = f'Plotly.newPlot("{identity}", {data}, {layout}, {{responsive: true, displaylogo: false}});'
    return f'<div class="figure" id="{identity}"></div><script>{call}</script>'


def _plain(value: Any) -> Any:
    """JSON without numbers it does not have: gaps in a line."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _layout(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "template": "plotly_white", "margin": {"t": 60, "r": 20}, **more}


def _lines(figure: FigureData) -> go.Figure:
    drawing = go.Figure()
    for index, series in enumerate(figure.series):
        colour = PALETTE[(index if series.colour is None else series.colour) % len(PALETTE)]
        line = {"color": colour, "dash": "dash" if series.dashed else "solid"}
        mode = "lines+markers" if len(series.x) < 30 else "lines"
        drawing.add_trace(go.Scatter(x=list(series.x), y=list(series.y), name=series.name, mode=mode, line=line))
    drawing.update_layout(**_layout(figure.title))
    drawing.update_xaxes(title=figure.x_label, type="log" if figure.log_x else "linear")
    drawing.update_yaxes(title=figure.y_label, type="log" if figure.log_y else "linear", exponentformat="power")
    return drawing


def _map(data: MapData) -> go.Figure:
    """A column per (rate, seed), grouped by rate; colours by verdict."""
    found = data.found
    seeds = max((len(verdicts) for verdicts in found.cells.values()), default=1)
    rates = [f"{rate:g}" for rate in found.rates for _ in range(seeds)]
    numbers = [str(seed) for _ in found.rates for seed in range(seeds)]
    heights, texts = [], []
    for row in found.rows:
        verdicts = [
            v for rate in found.rates for v in (*found.cells.get((row, rate), ()), *[None] * seeds)[:seeds]
        ]  # padded where a seed has no record
        heights.append([None if v is None else VERDICTS.index(v) for v in verdicts])
        texts.append(["no record" if v is None else v for v in verdicts])
    colours = [VERDICT_COLOURS[v] for v in VERDICTS]
    scale = [[edge, colours[i]] for i in range(3) for edge in (i / 3, (i + 1) / 3)]
    drawing = go.Figure(
        go.Heatmap(
            x=[rates, numbers], y=list(found.rows), z=heights, text=texts, hovertemplate="%{y}<br>%{x}: %{text}",
            zmin=-0.5, zmax=2.5, colorscale=scale, xgap=1, ygap=3, name="",
            colorbar={"tickvals": [0, 1, 2], "ticktext": list(VERDICTS), "len": 0.6},
        )
    )  # fmt: skip
    drawing.update_layout(**_layout(data.title, plot_bgcolor=UNKNOWN_COLOUR))
    drawing.update_xaxes(title="learning rate, seed")
    drawing.update_yaxes(autorange="reversed", automargin=True)
    return drawing

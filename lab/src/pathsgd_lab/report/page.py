"""The page: one HTML file with everything in it, plotly's script included; it needs no network.

Every number links to the record it was made from, at the end of the page.

What users and files supply (names of folders, settings, details) reaches the page in three ways
only: through the template, which escapes it; as JSON in an element that is no script; and as
plotly's texts, whose marks are escaped (``drawings.label``). The page's policy lets nothing run but
the two scripts below, known by their checksums.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from pathsgd_lab.report.drawings import drawing
from pathsgd_lab.report.model import Entry, FigureData, MapData, Section

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --soft: #f4f4f4; --line: #ddd; \
--faint: #555;
  --link: #0057a8; --here: #fff6d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e2e2; --paper: #16181c; --soft: #25282e; \
--line: #3c4048;
  --faint: #a5a8ae; --link: #7db8f0; --here: #4a4220; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; \
padding: 0 1rem; color: var(--ink);
  background: var(--paper); overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
nav a { margin-right: 1.2em; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); \
vertical-align: top; }
th { border-bottom: 2px solid #999; } thead th { cursor: pointer; }
th[aria-sort=ascending]::after { content: " ▴"; } th[aria-sort=descending]::after { content: " ▾"; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
code { font: 12px/1.4 ui-monospace, monospace; background: var(--soft); padding: .1em .3em; \
overflow-wrap: anywhere; }
td code { display: inline-block; max-width: 22rem; }
details { margin: .2rem 0; } summary { cursor: pointer; } :target { background: var(--here); }
.figure { height: 460px; }
@media (max-width: 600px) { .figure { height: 620px; } }  \
/* the legend has a line for each curve there */
.note { color: var(--faint); font-weight: normal; }
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
for (const { id, data, layout } of JSON.parse(document.getElementById("drawings").textContent)) {
  if (dark) {
    const ground = "#16181c", lines = { gridcolor: "#3c4048", linecolor: "#3c4048" };
    layout.plot_bgcolor = layout.plot_bgcolor || ground;
    Object.assign(layout, { paper_bgcolor: ground, font: { color: "#e2e2e2" } });
    Object.assign(layout.xaxis, lines); Object.assign(layout.yaxis, lines);
  }
  try { Plotly.newPlot(id, data, layout, { responsive: true, displaylogo: false }); }
  catch (error) { console.error(id, error); }  // the other drawings go on
}
for (const head of document.querySelectorAll("thead th")) { \
head.addEventListener("click", () => sort_by(head)); }
function sort_by(head) {  // by number where both cells start with one, \
by text otherwise; a second click turns it round
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.cells) { other.removeAttribute("aria-sort"); }
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = row => row.cells[column].textContent.trim().replace(/,(?=\\d{3})/g, "");
  const order = (a, b) => {
    const [x, y] = [parseFloat(a), parseFloat(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  const rows = [...body.rows].sort((a, b) => order(text(a), text(b)));
  body.append(...(down ? rows.reverse() : rows));
}
addEventListener("hashchange", open_target); addEventListener("load", open_target);
function open_target() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let e = target; e; e = e.parentElement) { if (e.tagName === "DETAILS") { e.open = true; } }
  if (target) { target.scrollIntoView(); }
}
"""


@dataclass(frozen=True)
class Placed:
    """A section and the names that links and drawings find its parts by."""

    anchor: str
    content: Section

    @functools.cached_property
    def anchors(self) -> dict[str, str]:
        """Where each record is told of, by its key."""
        return {
            s.key: f"{self.anchor}-record-{number}"
            for number, s in enumerate(self.content.sources, 1)
        }

    def targets(self, entry: Entry) -> list[str]:
        """Where the records of an entry are told of."""
        return [self.anchors[key] for key in entry.records if key in self.anchors]

    @functools.cached_property
    def drawings(self) -> dict[str, dict[str, Any]]:
        """The figures that have something in them, and the maps, by name."""
        shown: list[FigureData | MapData] = [
            figure for figure in self.content.figures if figure.series
        ]
        shown += self.content.maps
        return {
            f"{self.anchor}-drawing-{number}": drawing(each) for number, each in enumerate(shown, 1)
        }


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The whole document."""
    placed = [
        Placed(_anchor(section.name, number), section) for number, section in enumerate(sections, 1)
    ]
    plotly = get_plotlyjs()
    return _template().render(
        title=title,
        introduction=introduction,
        sections=placed,
        drawings=[
            {"id": name, **drawn} for section in placed for name, drawn in section.drawings.items()
        ],
        style=STYLE,
        plotly=plotly,
        script=SCRIPT,
        policy=_policy(plotly, SCRIPT),
    )


def _template() -> jinja2.Template:
    surroundings = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return surroundings.from_string(Path(__file__).with_name("page.html").read_text("utf-8"))


def _anchor(name: str, number: int) -> str:
    """The section's own name where it can stand in a link as it is."""
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) else f"section-{number}"


def _policy(*scripts: str) -> str:
    """Allow these scripts only and load nothing from elsewhere; plotly sets inline styles."""
    sums = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{each}'" for each in sums)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: "
        "blob:; base-uri 'none'; form-action 'none'"
    )

"""Figures and maps as plotly draws them on the page."""

from __future__ import annotations

import html
import math
from typing import Any

import plotly.graph_objects as go

from pathsgd_lab.report.model import PALETTE, UNKNOWN_COLOUR, VERDICT_COLOURS, FigureData, MapData
from pathsgd_lab.report.robustness import VERDICTS

# An axis ends at this many times the value below which most of the points (this part of them) lie.
_SPIKE, _USUAL = 100.0, 0.95


def drawing(content: FigureData | MapData) -> dict[str, Any]:
    """The JSON that plotly makes a drawing of."""
    figure = _lines(content) if isinstance(content, FigureData) else _map(content)
    return _plain({part: figure.to_plotly_json()[part] for part in ("data", "layout")})


def label(text: str) -> str:
    """A text as plotly shows it: it reads some of HTML's marks in all its texts."""
    return html.escape(text, quote=False)


def _plain(value: Any) -> Any:
    """JSON without numbers it does not have: gaps in a line."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _layout(title: str, **more: Any) -> dict[str, Any]:
    """The legend lies below the drawing, where it covers nothing at a phone's width."""
    legend = {"orientation": "h", "yanchor": "top", "y": -0.2}
    text = {"text": label(title), "font": {"size": 14}}
    return {
        "title": text,
        "template": "plotly_white",
        "margin": {"t": 60, "r": 20, "l": 60},
        "legend": legend,
        **more,
    }


def clipped(figure: FigureData) -> tuple[float, float, float] | None:
    """Bounds of a logarithmic y axis that ignore a few spikes, and the largest value."""
    values = sorted(v for series in figure.series for v in series.y if math.isfinite(v) and v > 0)
    if not figure.log_y or not values:
        return None
    top = _SPIKE * values[int(_USUAL * (len(values) - 1))]
    return (values[0], top, values[-1]) if values[-1] > top else None


def _lines(figure: FigureData) -> go.Figure:
    drawing = go.Figure()
    for index, series in enumerate(figure.series):
        colour = PALETTE[(index if series.colour is None else series.colour) % len(PALETTE)]
        line = {"color": colour, "dash": "dash" if series.dashed else "solid"}
        mode = "lines+markers" if len(series.x) < 30 else "lines"
        drawing.add_trace(
            go.Scatter(
                x=list(series.x), y=list(series.y), name=label(series.name), mode=mode, line=line
            )
        )
    drawing.update_layout(**_layout(figure.title))
    drawing.update_xaxes(title=label(figure.x_label), type="log" if figure.log_x else "linear")
    drawing.update_yaxes(
        title=label(figure.y_label),
        type="log" if figure.log_y else "linear",
        exponentformat="power",
    )
    bounds = clipped(figure)
    if bounds is not None:
        low, top, largest = bounds
        drawing.update_yaxes(range=[math.log10(low) - 0.1, math.log10(top)])
        said = f"axis clipped at {top:.1g}; the largest value is {largest:.1g}"
        drawing.update_layout(title_text=f"{label(figure.title)}<br><sup>{said}</sup>")
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
            v
            for rate in found.rates
            for v in (*found.cells.get((row, rate), ()), *[None] * seeds)[:seeds]
        ]  # padded where a seed has no record
        heights.append([None if v is None else VERDICTS.index(v) for v in verdicts])
        texts.append(["no record" if v is None else v for v in verdicts])
    colours = [VERDICT_COLOURS[v] for v in VERDICTS]
    scale = [[edge, colours[i]] for i in range(3) for edge in (i / 3, (i + 1) / 3)]
    drawing = go.Figure(
        go.Heatmap(
            x=[rates, numbers], y=[label(row) for row in found.rows], z=heights, text=texts,
            hovertemplate="%{y}<br>%{x}: %{text}", zmin=-0.5, zmax=2.5, colorscale=scale, xgap=1,
            ygap=3, name="",
            colorbar={"tickvals": [0, 1, 2], "ticktext": list(VERDICTS), "len": 0.6},
        )
    )  # fmt: skip
    drawing.update_layout(**_layout(data.title, plot_bgcolor=UNKNOWN_COLOUR))
    drawing.update_xaxes(title="learning rate, seed")
    drawing.update_yaxes(autorange="reversed", automargin=True)
    return drawing

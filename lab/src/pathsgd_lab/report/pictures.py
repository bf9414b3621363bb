"""Static pictures (matplotlib): the same figures as on the page, for papers and terminals."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from pathsgd_lab.files import write_file
from pathsgd_lab.report.model import (
    PALETTE,
    UNKNOWN_COLOUR,
    VERDICT_COLOURS,
    FigureData,
    HeatData,
    Section,
)
from pathsgd_lab.report.robustness import RobustnessMap


def write_pictures(sections: Sequence[Section], directory: Path) -> list[Path]:
    """Write a PNG for every figure and map that has something in it."""
    written = []
    for section in sections:
        for number, figure in enumerate(section.figures, 1):
            if figure.series:
                written.append(directory / f"{section.name}-{number}.png")
                line_picture(figure, written[-1])
        for number, data in enumerate(section.maps, 1):
            written.append(directory / f"{section.name}-map-{number}.png")
            robustness_picture(data.found, written[-1], data.title)
    return written


def line_picture(figure: FigureData, path: Path) -> None:
    """Write a figure's lines; values that are not finite leave gaps."""
    drawing, axes = plt.subplots(figsize=(7, 4.2), dpi=130)
    for index, series in enumerate(figure.series):
        colour = PALETTE[(index if series.colour is None else series.colour) % len(PALETTE)]
        y = [v if math.isfinite(v) else math.nan for v in series.y]
        style = "--" if series.dashed else "-"
        axes.plot(
            series.x, y, style, color=colour, label=series.name, marker="o" if len(y) == 1 else None
        )
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    if figure.log_y:
        axes.set_yscale("log")
    if figure.log_x:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    if figure.series:
        axes.legend(fontsize=8)
    _write(drawing, path)


def robustness_picture(found: RobustnessMap, path: Path, title: str = "") -> None:
    """Write a map: a block per rate and row, a strip per seed within it."""
    height = 1.4 + 0.45 * len(found.rows)
    drawing, axes = plt.subplots(figsize=(3.0 + 1.1 * len(found.rates), height), dpi=130)
    for y, row in enumerate(found.rows):
        for x, rate in enumerate(found.rates):
            verdicts = found.cells.get((row, rate), ())
            if not verdicts:
                axes.add_patch(plt.Rectangle((x, y), 0.94, 0.9, color=UNKNOWN_COLOUR))
            for seed, verdict in enumerate(verdicts):
                width = 0.94 / len(verdicts)
                colour = VERDICT_COLOURS[verdict]
                axes.add_patch(
                    plt.Rectangle(
                        (x + seed * width, y),
                        width,
                        0.9,
                        facecolor=colour,
                        edgecolor="white",
                        linewidth=0.6,
                    )
                )
    axes.set_xlim(-0.05, len(found.rates))
    axes.set_ylim(len(found.rows), -0.05)
    axes.set_xticks(
        [x + 0.47 for x in range(len(found.rates))], [f"{rate:g}" for rate in found.rates]
    )
    axes.set_yticks([y + 0.45 for y in range(len(found.rows))], list(found.rows), fontsize=8)
    axes.set_xlabel("learning rate (a strip per seed)")
    axes.set_title(title, fontsize=10)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.legend(
        handles=[Patch(color=colour, label=verdict) for verdict, colour in VERDICT_COLOURS.items()],
        loc="upper center", bbox_to_anchor=(0.5, -0.9 / height), ncols=3, fontsize=8, frameon=False,
    )  # fmt: skip
    _write(drawing, path)


def heat_picture(panels: Sequence[HeatData], path: Path, label: str) -> None:
    """Write heat maps side by side with shared rows, a number in each cell, high values dark."""
    rows = list(panels[0].rows)
    widths = [len(panel.columns) for panel in panels]
    size = (2.2 + 0.62 * sum(widths), 1.1 + 0.27 * len(rows))
    drawing, axes = plt.subplots(
        1,
        len(panels),
        figsize=size,
        width_ratios=widths,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    highest = max(
        v for panel in panels for values in panel.rows.values() for v in values if v is not None
    )
    for panel, axis in zip(panels, axes[0]):
        values = [[math.nan if v is None else v for v in panel.rows[row]] for row in rows]
        axis.set_facecolor(UNKNOWN_COLOUR)
        image = axis.imshow(values, cmap="viridis_r", vmin=0.0, vmax=highest, aspect="auto")
        for y, x in ((y, x) for y in range(len(rows)) for x in range(len(panel.columns))):
            if not math.isnan(values[y][x]):
                colour = "white" if values[y][x] > 0.5 * highest else "black"
                axis.text(
                    x, y, f"{values[y][x]:.0f}", ha="center", va="center", fontsize=8, color=colour
                )
        axis.set_title(panel.title, fontsize=10)
        axis.set_xticks(range(len(panel.columns)), panel.columns, fontsize=8)
        axis.set_yticks(range(len(rows)), rows, fontsize=8)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    drawing.colorbar(image, ax=list(axes[0]), label=label)
    _write(drawing, path)


def _write(drawing: plt.Figure, path: Path) -> None:
    # The same picture has the same bytes: names within it do not depend on chance, and it has no
    # date.
    content, kind = io.BytesIO(), path.suffix.removeprefix(".")
    undated = {"Date": None} if kind == "svg" else None
    try:
        with matplotlib.rc_context({"svg.hashsalt": "pathsgd"}):
            drawing.savefig(content, format=kind, bbox_inches="tight", metadata=undated)
    finally:
        plt.close(drawing)
    write_file(path, content.getvalue())

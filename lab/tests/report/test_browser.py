"""The page in a real browser: nothing runs but its own scripts, and those do their work under its
policy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pathsgd_lab import cli
from pathsgd_lab.report.model import FigureData, Series
from pathsgd_lab.report.page import page
from pathsgd_lab.studies.demo import INTRODUCTION, TITLE, demo_section
from support.browser import Visit, chromium
from support.pages import EVIL, section

RESULTS = Path(__file__).parents[3] / "studies"

ALERTS = (
    "<img src=x onerror=alert('image')>",
    "<script>alert('script')</script>",
    "<a href=\"javascript:alert('link')\" id=bait>bait</a>",
    "<iframe srcdoc=\"<script>parent.alert('frame')</script>\"></iframe>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def test_names_that_would_be_marks_do_nothing_and_plotly_draws(
    browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text(page(EVIL, EVIL, [section(EVIL), section("plain")]))
    visit = Visit(browser, tmp_path / "page.html")
    assert visit.dialogs == visit.errors == []
    assert (
        visit.page.locator(".figure").count()
        == visit.page.locator(".figure .main-svg:first-child").count()
        == 4
    )
    assert visit.page.locator("img").count() == visit.page.locator("iframe").count() == 0
    assert visit.page.locator("h1").inner_text() == EVIL


def test_a_results_folder_with_an_evil_name(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = 'x"><img src=x onerror=alert(1)>'
    shutil.copytree(RESULTS / "badly-scaled-text", tmp_path / name / name)
    assert cli.main(["report", name, "--out", "page.html"]) == 0
    visit = Visit(browser, tmp_path / "page.html")
    assert visit.dialogs == visit.errors == []
    assert visit.page.locator("h2", has_text=name).count() == 1
    assert visit.page.locator(".figure .main-svg").count() > 0


@pytest.mark.parametrize("mark", ALERTS)
def test_the_policy_alone_stops_what_slips_through(mark: str, browser: Any, tmp_path: Path) -> None:
    """The page as it would be if its template escaped nothing."""
    text = page("title", "introduction", [section("plain")])
    assert text.count("<h1>title</h1>") == 1
    for name, policy in (("with", True), ("without", False)):
        marked = text.replace("<h1>title</h1>", f"<h1>title</h1>{mark}")
        if not policy:
            marked = marked.replace("Content-Security-Policy", "Nothing")
        (tmp_path / f"{name}.html").write_text(marked)
        visit = Visit(browser, tmp_path / f"{name}.html")
        if "bait" in mark:
            visit.page.locator("#bait").click()
        visit.wait_for_outcome()
        assert bool(visit.dialogs) is not policy, (name, visit.dialogs)
        assert bool(visit.violations) is policy
        assert visit.page.locator(".figure .main-svg").count() > 0


def boxes(visit: Visit, *names: str) -> list[dict[str, float]]:
    """Where elements are, in pixels of the page."""
    return [visit.page.locator(name).first.bounding_box() for name in names]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_demo_s_page_at_a_desk_and_on_a_phone(
    width: int, dark: bool, browser: Any, tmp_path: Path
) -> None:
    """Eight curves, one with a spike: no overlap, no sideways scrolling, the spike is mentioned."""
    steps = tuple(200.0 * k for k in range(25))
    values = tuple(0.17 * 0.8**k for k in range(25))
    curves = [
        Series(
            f"{name}, {scaling}",
            steps,
            (*values[:5], 1e10 if name == "Adam" else 0.1, *values[6:]),
            bool(scaled),
            row,
        )
        for row, name in enumerate(
            ("SGD with momentum", "Adam", "PathSGD with momentum", "PathAdam")
        )
        for scaled, scaling in enumerate(("balanced", "badly scaled"))
    ]
    shown = replace(
        demo_section([]),
        figures=(
            FigureData("Validation error", "steps", "mean squared error", tuple(curves), True),
        ),
    )
    (tmp_path / "demo.html").write_text(page(TITLE, INTRODUCTION, [shown]))
    visit = Visit(browser, tmp_path / "demo.html", width, dark)
    assert visit.errors == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") == width
    legend, plot, title, axis = boxes(visit, ".legend", ".nsewdrag", ".gtitle", ".xtitle")
    assert legend["y"] > axis["y"] + axis["height"] and axis["y"] > plot["y"] + plot["height"]
    assert title["y"] + title["height"] < plot["y"]
    assert plot["height"] > 200 and plot["width"] > 0.6 * width
    assert (
        legend["x"] + legend["width"] < width and legend["y"] + legend["height"] < 900 + plot["y"]
    )
    assert "axis clipped at" in visit.page.locator(".gtitle").text_content()
    table, sentence = boxes(visit, "table", ".table + .note")
    assert sentence["y"] >= table["y"] + table["height"]
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark

"""The page: what users and files supply stays text; nothing runs but the page's own two scripts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import html.parser
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from pathsgd_lab import cli
from pathsgd_lab.report.drawings import drawing
from pathsgd_lab.report.model import FigureData, Series
from pathsgd_lab.report.page import page
from support.pages import EVIL, section

RESULTS = Path(__file__).parents[3] / "studies"


class Skeleton(html.parser.HTMLParser):
    """The elements of a page with their attributes' names, its scripts and its links' targets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, tuple(name for name, _ in attrs)] += 1
        given = dict(attrs)
        self.ids |= {str(given["id"])} if "id" in given else set()
        self.links |= {str(given["href"])} if tag == "a" else set()
        if tag == "script":
            self.scripts.append((given, ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts and not self.scripts[-1][1]:
            self.scripts[-1] = (self.scripts[-1][0], data)


def test_no_text_becomes_an_element_an_attribute_or_a_script() -> None:
    calm, evil = (
        Skeleton(page(text, text, [section(text), section("plain")])) for text in ("calm", EVIL)
    )
    assert evil.elements == calm.elements and not evil.elements["img", ("src", "onerror")]
    assert [script for given, script in evil.scripts if not given] == [
        s for given, s in calm.scripts if not given
    ]
    assert all(re.fullmatch(r"[A-Za-z][\w-]*", identity) for identity in evil.ids)
    assert evil.links and all(link[1:] in evil.ids for link in evil.links)


def test_texts_of_drawings_are_no_marks_to_plotly() -> None:
    ((given, content),) = [
        s for s in Skeleton(page("t", "i", [section(EVIL)])).scripts if s[0].get("id") == "drawings"
    ]
    assert given["type"] == "application/json"
    assert (
        "<" not in content
        and "&lt;img" in content.replace("\\u0026", "&")
        and "{{ 7*7 }}" in content
    )


def test_the_policy_allows_the_page_s_own_scripts_and_nothing_else() -> None:
    text = page("t", "i", [section(EVIL)])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    directives = dict(part.strip().split(" ", 1) for part in html.unescape(policy).split(";"))
    assert directives["default-src"] == directives["base-uri"] == "'none'"
    scripts = [content for given, content in Skeleton(text).scripts if not given]
    sums = {
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    }
    assert len(scripts) == 2 and set(directives["script-src"].split()) == sums
    assert text.index("Content-Security-Policy") < text.index("<script")


def test_a_folder_with_an_evil_name_is_shown_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = 'x"><img src=x onerror=alert(1)>'
    for folder in ("calm", name):
        shutil.copytree(RESULTS / "badly-scaled-text", tmp_path / folder / folder)
        assert (
            cli.main(["report", folder, "--out", f"{len(folder)}.html", "--pictures", "pictures"])
            == 0
        )
    calm, evil = (Skeleton(Path(f"{len(folder)}.html").read_text()) for folder in ("calm", name))
    assert evil.elements == calm.elements
    assert name in capsys.readouterr().out


BAD_RECORDS = {
    "wrong type": ('"steps": ', '"steps": "many", "_": '),
    "no number": ('"seconds": ', '"seconds": null, "_": '),
    "no curve": ('"curve": [', '"curve": {}, "_": ['),
    "unknown outcome": ('"outcome": "', '"outcome": "won'),
    "deep": ('"detail": ', '"detail": ' + "[" * 100_000 + ', "_": '),
    "figures that are none": ('"metrics": {"valid": ', '"metrics": {"valid": "nan", "_": '),
    "points without validation": ('"metrics": {"valid"', '"metrics": {"vaild"'),
    "no profile": ('"profile": {', '"profile": {}, "_": {'),
    "another version": ('"version": 2', '"version": 3'),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_damaged_line_is_told_of_and_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ("badly-scaled-text", "larger-start")
    before, after = BAD_RECORDS[kind]
    for folder in folders:
        (tmp_path / "results" / folder).mkdir(parents=True)
        packed = (RESULTS / folder / "runs.jsonl.gz").read_bytes()
        first, *others = gzip.decompress(packed).decode().splitlines(keepends=True)
        assert before in first
        lines = [*others, first.replace(before, after)]
        (tmp_path / "results" / folder / "runs.jsonl").write_text("".join(lines))
    assert cli.main(["report", "results"]) == 0
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2 and not any("\n" in warning for warning in warnings)
    for folder, number in zip(folders, (7, 6), strict=True):
        place = f"results/{folder}/runs.jsonl, line {number}, cannot be read as a run"
        assert any(place in warning for warning in warnings)


def test_a_spike_does_not_flatten_the_curves_and_the_figure_says_so() -> None:
    calm = [0.1 + 0.001 * k for k in range(100)]
    figure = FigureData(
        "loss", "step", "loss", (Series("a", tuple(range(100)), (*calm[:-1], 1e10)),), log_y=True
    )
    layout = drawing(figure)["layout"]
    assert (
        layout["yaxis"]["range"][1] < 2
        and "clipped at 2e+01; the largest value is 1e+10" in layout["title"]["text"]
    )
    without = FigureData(
        "loss", "step", "loss", (Series("a", tuple(range(100)), tuple(calm)),), log_y=True
    )
    assert "range" not in drawing(without)["layout"]["yaxis"]
    assert drawing(without)["layout"]["title"]["text"] == "loss"

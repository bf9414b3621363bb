"""Every table and figure of the paper at smoke scale: its runs, its part of the report, the page in
a browser."""

from __future__ import annotations

import dataclasses
import html.parser
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pathsgd_lab import cli, flags
from pathsgd_lab.commands.reproduce import chosen
from pathsgd_lab.report.page import page
from pathsgd_lab.report.pictures import write_pictures
from pathsgd_lab.report.select import best_group, score, spread
from pathsgd_lab.report.tables import share_of_gap
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import replace_settings
from pathsgd_lab.run.train import train
from pathsgd_lab.studies import Studies
from pathsgd_lab.studies.demo import demo_section, demo_specs
from pathsgd_lab.studies.sections import sections
from pathsgd_lab.studies.study import SCALES
from pathsgd_lab.sweep.cells import Places, RunCell
from pathsgd_lab.sweep.grid import parse_grid
from pathsgd_lab.sweep.jobs import execute
from pathsgd_lab.sweep.results import RunTable

STUDIES = Studies()
EXPERIMENTS = [  # the studies with a small size; the others are sweeps of one size
    name
    for name in STUDIES.names
    if STUDIES[name].stages and len(set(STUDIES[name].duration.values())) > 1
]
PTB_CHARACTERS = import_module("studies.ptb-char.study").TABLE
BROWSERS = [
    path
    for name in ("chromium", "chromium-browser", "google-chrome")
    if (path := shutil.which(name))
][:1]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path, worker_id: str) -> Path:
    """Every experiment at smoke scale, made once for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "smoke"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            for name in EXPERIMENTS:
                run_all_stages(name, root, tiny_data)
    return root / "results"


def run_all_stages(name: str, root: Path, data: Path) -> None:
    experiment = STUDIES[name]
    places = Places(root / "results" / name, root / "work")
    for stage in experiment.stages:
        records = [f.record for f in RunTable(places.results, experiment.read).filed()]
        known = {record.hash for record in records}
        for cell in stage("smoke", records):
            if cell.key not in known:
                done = execute(cell.key, cell, places, data)
                assert done.outcome in ("solved", "finished", "timeout", "diverged"), done
        RunTable(places.results).pack()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_stage_has_its_records(name: str, results: Path) -> None:
    experiment = STUDIES[name]
    known = RunTable(results / name, experiment.read).finished()
    records = [filed.record for filed in known.values()]
    for stage in experiment.stages:
        assert {cell.key for cell in stage("smoke", records)} <= set(known)
    section = experiment.section(RunTable(results / name, experiment.read).filed())
    assert len(section.sources) == len(known)
    keys = {source.key for source in section.sources}
    numbers = [
        cell for table in section.tables for row in table.rows for cell in row if cell.records
    ]
    assert numbers and all(set(cell.records) <= keys for cell in numbers)


def test_the_adding_problem_has_a_map_for_each_way_to_begin(results: Path) -> None:
    section = STUDIES["adding"].section(RunTable(results / "adding").filed())
    direct, curriculum = (data.found for data in section.maps)
    assert direct.rows == curriculum.rows and direct.rates == curriculum.rates
    methods = {row.rpartition(", ")[0] for row in direct.rows}
    assert len(methods) == 5
    assert set(direct.rows) == {
        f"{method}, {start}" for method in methods for start in ("balanced", "scaled by up to 100")
    }
    assert {
        len(verdicts) for found in (direct, curriculum) for verdicts in found.cells.values()
    } == {2}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_second_stage_takes_the_best_rate(name: str, results: Path) -> None:
    experiment = STUDIES[name]
    if len(experiment.stages) == 1:
        assert name in (
            "kappa-ratios",
            "cost",
            "paper-rule",
            "growth",
            "ingredients",
        )  # nothing to choose
        return
    assert experiment.stages[1]("smoke", []) == []
    records = [f.record for f in RunTable(results / name, experiment.read).filed()]
    first = {cell.key for cell in experiment.stages[0]("smoke", [])}
    chosen_rates: dict[Any, set[float]] = {}
    for cell in experiment.stages[1]("smoke", records):
        spec = cell.spec  # type: ignore[attr-defined]
        chosen_rates.setdefault(_method(spec), set()).add(spec.optimiser.lr)
    for method, rates in chosen_rates.items():
        grid = [
            r for r in records if r.hash in first and _method(r.spec) == method and r.spec.seed == 0
        ]
        scores = {
            r.spec.optimiser.lr: r.valid if r.outcome != "diverged" else float("inf") for r in grid
        }
        best = max(rates)
        assert len(scores) > 1 and scores[best] == min(scores.values())
        lower = {rate for rate in scores if rate < best}
        assert rates == {best} | (
            {max(lower)} if lower and name in ("ptb-char", "ptb-word", "smnist") else set()
        )


@pytest.mark.parametrize("name", ["ptb-char", "text8", "smnist"])
def test_further_seeds_go_to_the_better_of_the_longer_runs(name: str, results: Path) -> None:
    records = [f.record for f in RunTable(results / name).filed()]
    by_key = {record.hash: record for record in records}
    stages: Sequence[Any] = STUDIES[name].stages
    longer = [by_key[cell.key] for cell in stages[1]("smoke", records)]
    further = stages[-1]("smoke", records)
    assert len(further) == len({_method(record.spec) for record in longer})
    assert {cell.spec.seed for cell in further} == {1}
    for cell in further:
        rivals = [record for record in longer if _method(record.spec) == _method(cell.spec)]
        first = min(rivals, key=score)
        assert first.spec == replace_settings(cell.spec, seed=0)


def _method(spec: Any) -> Any:
    parts = (
        spec.task,
        spec.system,
        dataclasses.replace(spec.optimiser, lr=1.0),
        spec.curriculum,
        spec.schedule,
    )
    return (*parts, spec.unbalanced)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_cells_and_a_duration(name: str, scale: Any) -> None:
    experiment = STUDIES[name]
    cells = experiment.stages[0](scale, [])
    assert cells and experiment.duration[scale]
    assert len({cell.key for cell in cells}) == len(cells) == len({cell.slug for cell in cells})


def test_only_chooses_cells() -> None:
    cells = STUDIES["adding"].stages[0]("laptop", [])
    some = chosen(cells, parse_grid(["system=irnn,lstm", "length=100", "lr=1e-3,0.001"]))
    found = {(c.spec.system.name, c.spec.task.length) for c in some}  # type: ignore[attr-defined]
    assert found == {("irnn", 100), ("lstm", 100)}


def test_best_group_has_the_most_seeds_and_then_the_best_validation() -> None:
    record = train(
        replace_settings(demo_specs(length=4, steps=2)[2], valid_size=5, test_size=5, hidden=2)
    )

    def variant(lr: float, seed: int, valid: float, outcome: Any = "finished") -> Record:
        spec = replace_settings(record.spec, lr=lr, seed=seed)
        return dataclasses.replace(
            record, spec=spec, metrics={"valid": valid, "test": 2 * valid}, outcome=outcome
        )

    once = [variant(0.1, 0, 0.0)]
    better = [variant(0.2, seed, 1.0) for seed in (0, 1)]
    worse = [variant(0.3, seed, 2.0) for seed in (0, 1)]
    diverged = [variant(0.4, seed, 0.5, "diverged") for seed in (0, 1)]
    assert best_group([*once, *worse, *better, *diverged]) == better
    assert spread([r.test for r in better]).text(1) == "2.0 ± 0.0"


def test_share_of_the_gap_is_the_paper_s() -> None:
    assert (
        round(share_of_gap(1.55, 1.47, 1.41)) == 57 and round(share_of_gap(1.65, 1.58, 1.52)) == 54
    )


def test_the_gap_is_read_off_runs_of_one_length(results: Path) -> None:
    label = "RNN-Path, PathAdam"
    filed = RunTable(results / "ptb-char").filed()
    lengths = {f.record.hash: f.record.spec.budget.steps for f in filed}
    longest = max(steps for steps in lengths.values() if steps)
    assert {lengths[key] for key in PTB_CHARACTERS.gap_closed(label, filed).records} == {longest}
    short_lstm = [
        f
        for f in filed
        if f.record.spec.system.name != "lstm" or f.record.spec.budget.steps != longest
    ]
    shorter = {lengths[key] for key in PTB_CHARACTERS.gap_closed(label, short_lstm).records}
    assert len(shorter) == 1 and shorter != {longest}
    behind = [
        dataclasses.replace(
            f, record=dataclasses.replace(f.record, metrics={"valid": 9.0, "test": 9.0})
        )
        if f.record.spec.system.name == "lstm"
        else f
        for f in filed
    ]
    assert "no gap" in PTB_CHARACTERS.gap_closed(label, behind).text
    without = [f for f in filed if f.record.spec.system.name != "lstm"]
    assert PTB_CHARACTERS.gap_closed(label, without).text == "—"


class Links(html.parser.HTMLParser):
    """Collects the anchors of a page and where its links and resources point."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        if tag == "a":
            self.targets.append(str(given.get("href")))
        elif given.get("src") or given.get("href"):
            self.loaded.append(str(given.get("src") or given.get("href")))


def test_page_is_whole_and_every_number_leads_to_its_record(results: Path, tmp_path: Path) -> None:
    cli.main(["report", str(results), "--out", str(tmp_path / "report.html")])
    links = Links((tmp_path / "report.html").read_text())
    assert len(links.targets) > 100
    assert all(target.startswith("#") and target[1:] in links.anchors for target in links.targets)
    assert [source for source in links.loaded if not source.startswith("data:")] == []


def test_sweeps_have_their_own_section(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "smnist", tmp_path / "my-sweep")
    (section,) = [s for s in sections(Studies(results=tmp_path)) if s.name == "my-sweep"]
    assert len(section.sources) == len(RunTable(tmp_path / "my-sweep").filed())
    shown = [key for row in section.tables[0].rows for cell in row for key in cell.records]
    assert sorted(shown) == sorted(source.key for source in section.sources)
    assert section.maps


def test_without_results_the_tables_are_empty(results: Path, tmp_path: Path) -> None:
    gone = tmp_path / "results"
    shutil.copytree(results, gone)
    assert any(section.sources for section in sections(Studies(results=gone)))
    shutil.rmtree(gone)
    empty = sections(Studies(results=gone))
    assert {section.name for section in empty} == set(STUDIES.names)
    assert {section.name for section in empty[:2]} == {"every-cell", "default-rate"}
    cells = [
        cell for section in empty for table in section.tables for row in table.rows for cell in row
    ]
    assert all(not cell.records for cell in cells) and not any(s.sources for s in empty)
    assert not any(
        series for section in empty for figure in section.figures for series in figure.series
    )
    assert all(not section.maps for section in empty)


def test_labels_cannot_break_out_of_the_page(results: Path) -> None:
    section = STUDIES["adding"].section(RunTable(results / "adding").filed())
    evil = "</script><script>alert(1)</script>"
    figure = dataclasses.replace(section.figures[0], title=evil)
    text = page(evil, evil, [dataclasses.replace(section, title=evil, figures=(figure,))])
    assert "<script>alert(1)" not in text.split("</head>")[1]


def test_pictures_are_written(results: Path, tmp_path: Path) -> None:
    written = write_pictures(sections(Studies(results=results)), tmp_path)
    assert len(written) >= 6 and all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_commands_reproduce_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "reproduce",
        "kappa-ratios",
        "--scale",
        "smoke",
        "--only",
        "hidden=5",
        "start=identity",
    ]
    assert cli.main(words) == 0
    assert "2 of 2 cells: 2 finished" in capsys.readouterr().out
    assert cli.main([*words, "--list"]) == 0
    assert capsys.readouterr().out.count("  # has a record") == 2
    assert cli.main(words) == 0
    assert "2 of 2 cells: 2 known" in capsys.readouterr().out
    assert cli.main(["report", "runs/smoke"]) == 0
    assert "kappa-ratios            2 records" in capsys.readouterr().out
    assert Path("runs/report.html").stat().st_size > 1_000_000
    assert cli.main([*words, "hidden=5,77", "--list"]) == 2  # hidden twice
    assert cli.main(["reproduce", "adding", "--only", "hidden=77"]) == 2
    assert cli.main(["reproduce", "addding"]) == 2


def test_list_shows_later_stages_as_far_as_records_choose_them(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "smnist", "--scale", "smoke", "--list", "--results"]
    assert cli.main([*words, str(tmp_path)]) == 0
    before = capsys.readouterr().out.splitlines()
    assert before and not any("has a record" in line for line in before)
    assert cli.main([*words, str(results / "smnist")]) == 0
    after = capsys.readouterr().out.splitlines()
    assert len(set(after)) == len(after) > len(before) and all(
        line.endswith("# has a record") for line in after
    )


def test_demo_has_every_method_from_two_starts_and_says_so(tmp_path: Path) -> None:
    specs = [
        replace_settings(s, hidden=4, valid_size=10, test_size=10)
        for s in demo_specs(length=6, steps=10)
    ]
    assert len(specs) == 8
    places = Places(tmp_path / "records", tmp_path / "work")
    for spec in specs:
        execute("", RunCell(spec), places, None)
    section = demo_section(RunTable(tmp_path / "records").filed())
    labels = [row[0].text for row in section.tables[0].rows]
    names = [
        "SGD, momentum, rate 0.01",
        "Adam, rate 0.001",
        "PathSGD, momentum, rate 0.01",
        "PathAdam, rate 0.001",
    ]
    assert labels == names
    assert all(cell.records for row in section.tables[0].rows for cell in row[1:])
    assert len(section.figures[0].series) == 8


@pytest.mark.parametrize("browser", BROWSERS)
def test_figures_are_drawn_in_a_browser(browser: str, results: Path, tmp_path: Path) -> None:
    cli.main(["report", str(results), "--out", str(tmp_path / "report.html")])
    found = sections(Studies(results=results))
    words = (
        "--headless --no-sandbox --disable-gpu "
        "--disable-background-networking --disable-component-update"
    )
    command = [browser, *words.split(), "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=20000", "--dump-dom", (tmp_path / "report.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body = done.stdout.split("</head>", 1)[1]
    drawn = re.findall(r'<div class="figure[^"]*js-plotly-plot[^"]*" id="([^"]+)"', body)
    wanted = []
    for section in found:
        count = sum(bool(f.series) for f in section.figures) + len(section.maps)
        wanted += [f"{section.name}-drawing-{i}" for i in range(1, count + 1)]
    assert drawn == wanted and len(wanted) > 6
    lines = sum(len(figure.series) for section in found for figure in section.figures)
    assert body.count('class="trace scatter') == lines > 10
    assert 'class="hm"' in body and 'class="main-svg"' in body


def test_record_s_command_makes_the_same_run(results: Path) -> None:
    for filed in RunTable(results / "ptb-char").filed()[:5]:
        words = flags.command_of(filed.record.spec).split()[2:]
        names, rest = flags.split_names(words)
        again = flags.with_flags(flags.named_spec(names, ""), rest, "train")
        assert replace_settings(filed.record.spec, paper_ref="") == again

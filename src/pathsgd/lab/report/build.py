"""A results directory in, a page and pictures out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pathsgd.lab.record import read_record, write_text
from pathsgd.lab.report.collect import filed_records
from pathsgd.lab.report.model import Section
from pathsgd.lab.report.page import page
from pathsgd.lab.report.pictures import line_picture, robustness_picture
from pathsgd.lab.report.sweeps import sweep_section
from pathsgd.lab.specs import EXPERIMENTS

TITLE = "Path-normalized optimisation of recurrent nets: the paper's figures and ours"
INTRODUCTION = (
    "Made from the records of runs and from nothing else. Each number links to the records it was made from; each row "
    "has the command that makes it again. 'Paper' is Neyshabur, Wu, Salakhutdinov and Srebro (2016), 'ours' the mean "
    "over seeds at the learning rate that was best on the validation set."
)


def sections(results: Path) -> list[Section]:
    """One section per experiment, with or without records; one for each at paper scale and each sweep that has any."""
    found = []
    for name, experiment in EXPERIMENTS.items():
        found.append(experiment.section(filed_records(results, name, experiment.read)))
        at_paper_scale = filed_records(results, f"{name}-paper", experiment.read)
        if at_paper_scale:
            section = experiment.section(at_paper_scale)
            title = f"{section.title}, at the paper's size"
            found.append(dataclasses.replace(section, name=f"{name}-paper", title=title))
    known = {f"{name}{scale}" for name in EXPERIMENTS for scale in ("", "-paper")}
    for folder in sorted(path.name for path in results.glob("*/") if path.name not in known):
        records = filed_records(results, folder, read_record)
        if records:
            found.append(sweep_section(folder, records))
    return found


def write_report(results: Path, path: Path) -> list[Section]:
    """Write the page."""
    found = sections(results)
    write_text(path, page(TITLE, INTRODUCTION, found))
    return found


def write_pictures(found: list[Section], directory: Path) -> list[Path]:
    """Write a PNG for every figure and map that has something in it."""
    written = []
    for section in found:
        for number, figure in enumerate(section.figures, 1):
            if figure.series:
                written.append(directory / f"{section.name}-{number}.png")
                line_picture(figure, written[-1])
        for number, data in enumerate(section.maps, 1):
            written.append(directory / f"{section.name}-map-{number}.png")
            robustness_picture(data.found, written[-1], data.title)
    return written

"""A results directory in, the sections of a report out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pathsgd_lab.experiments import EXPERIMENTS
from pathsgd_lab.experiments.every_cell import every_cell_section
from pathsgd_lab.report.model import Section
from pathsgd_lab.report.sweeps import sweep_section
from pathsgd_lab.sweep.results import ResultsFolder

TITLE = "Path-normalized optimisation of recurrent nets: the paper's figures and ours"
INTRODUCTION = (
    "Made from the records of runs and from nothing else. Each number links to the records it was made from; each row "
    "has the command that makes it again. 'Paper' is Neyshabur, Wu, Salakhutdinov and Srebro (2016), 'ours' the mean "
    "over seeds at the learning rate that was best on the validation set."
)


def sections(results: Path) -> list[Section]:
    """Every cell; one section per experiment, with or without records; one for each at paper scale, and each sweep."""
    found = [every_cell_section(results)]
    for name, experiment in EXPERIMENTS.items():
        found.append(experiment.section(ResultsFolder(results / name, experiment.read).filed()))
        at_paper_scale = ResultsFolder(results / f"{name}-paper", experiment.read).filed()
        if at_paper_scale:
            section = experiment.section(at_paper_scale)
            title = f"{section.title}, at the paper's size"
            found.append(dataclasses.replace(section, name=f"{name}-paper", title=title))
    known = {f"{name}{scale}" for name in EXPERIMENTS for scale in ("", "-paper")}
    for folder in sorted(path for path in results.glob("*/") if path.name not in known):
        records = ResultsFolder(folder).filed()
        if records:
            found.append(sweep_section(folder.name, records))
    return found

"""Studies and a folder of runs in, the sections of a report out."""

from __future__ import annotations

from pathsgd_lab.report.model import Section
from pathsgd_lab.report.sweeps import sweep_section
from pathsgd_lab.studies.find import Studies
from pathsgd_lab.sweep.results import RunTable

TITLE = "Path-normalized optimisation of recurrent nets: the paper's figures and ours"
INTRODUCTION = (
    "Made from the records of runs and from nothing else. Each number links to the records it was "
    "made from; each row has the command that makes it again. 'Paper' is Neyshabur, Wu, "
    "Salakhutdinov and Srebro (2016), 'ours' the mean over seeds at the learning rate that was "
    "best on the validation set."
)


def sections(studies: Studies) -> list[Section]:
    """One section per study, with or without runs, overviews first; one for each other folder."""
    names = sorted(studies.names, key=lambda name: not studies[name].reads)
    found = [studies[name].section(studies.filed(name)) for name in names]
    for folder in sorted(path for path in studies.results.glob("*/") if path.name not in names):
        runs = RunTable(folder).filed()
        if runs:
            found.append(sweep_section(folder.name, runs))
    return found

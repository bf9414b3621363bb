"""Where the studies are, and what is in them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pathsgd_lab.errors import StudyError
from pathsgd_lab.studies.study import Study
from pathsgd_lab.sweep.results import Filed, RunTable

VARIABLE = "PATHSGD_STUDIES"


def studies_folder() -> Path:
    """$PATHSGD_STUDIES, or else ``studies`` in the clone that holds this directory or the lab."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    here, lab = Path.cwd(), Path(__file__)
    for place in (here, *here.parents, *lab.parents):
        if any((place / "studies").glob("*/study.py")):
            return place / "studies"
    raise StudyError(
        "no studies found: run in a clone of pathsgd, or give their folder (--studies, "
        f"${VARIABLE})"
    )


class Studies:
    """The studies in a folder, each loaded when it is asked for, and their runs.

    results: folder with a folder of runs for each study; None: the runs lie beside study.py.
    """

    def __init__(self, folder: Path | None = None, results: Path | None = None) -> None:
        self.folder = (folder or studies_folder()).absolute()
        self.results = self.folder if results is None else results.absolute()
        self.names = sorted(path.parent.name for path in self.folder.glob("*/study.py"))
        if not self.names or self.folder.name != "studies":
            raise StudyError(f"{self.folder} is not a folder `studies` with NAME/study.py in it")
        self._tables: dict[str, RunTable] = {}

    def __getitem__(self, name: str) -> Study:
        if name not in self.names:
            raise StudyError(f"unknown study {name!r}; choose one of {', '.join(self.names)}")
        # A name that processes of a sweep find as well, as they take over sys.path.
        if str(self.folder.parent) not in sys.path:
            sys.path.insert(0, str(self.folder.parent))
        study: Study = importlib.import_module(f"studies.{name}.study").STUDY
        return study

    def __iter__(self) -> Iterator[Study]:
        return (self[name] for name in self.names)

    def runs(self, name: str) -> RunTable:
        """The table of a study's own runs."""
        read = self[name].read  # loads the study, which may add optimisers
        return self._tables.setdefault(name, RunTable(self.results / name, read))

    def filed(self, name: str) -> list[Filed]:
        """The runs that a study shows."""
        return [f for each in self[name].reads or (name,) for f in self.runs(each).filed()]

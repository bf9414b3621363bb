"""From a results directory to sections: each folder is an experiment's, every file in it a record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathsgd.lab.record import RecordError
from pathsgd.lab.report.select import Filed

log = logging.getLogger(__name__)


def filed_records(results: Path, folder: str, read: Callable[[Path], Any]) -> list[Filed]:
    """Records in a folder of the results directory; a file that cannot be read is left out, with a warning."""
    found = []
    for path in sorted((results / folder).glob("*.json")):
        filed = _filed(path, results, read)
        if filed is not None:
            found.append(filed)
    return found


def _filed(path: Path, results: Path, read: Callable[[Path], Any]) -> Filed | None:
    try:
        return Filed(path.relative_to(results).as_posix(), read(path))
    except RecordError as error:
        log.warning("%s", error)
        return None

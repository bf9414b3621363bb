"""Cells that measure instead of train: settings in, a few rows of figures out."""

from __future__ import annotations

import datetime
import hashlib
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from pathsgd_lab.errors import RecordError
from pathsgd_lab.report.model import Source
from pathsgd_lab.run.provenance import Machine, commit, machine, versions
from pathsgd_lab.run.record import VERSION, plain
from pathsgd_lab.run.spec import canonical_json
from pathsgd_lab.sweep.results import Filed, RunTable


@dataclass(frozen=True)
class Measurement:
    """What a measuring cell leaves behind."""

    kind: str
    settings: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    machine: Machine
    versions: dict[str, str]
    commit: str
    started: str
    outcome: Literal["finished"] = "finished"
    version: int = VERSION
    remarks: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """The cell's key."""
        return hashlib.sha256(canonical_json([self.kind, self.settings]).encode()).hexdigest()


@dataclass(frozen=True)
class MeasuringCell(ABC):
    """A measurement as a cell of a sweep; subclasses are frozen dataclasses of settings."""

    kind: ClassVar[str]
    row: ClassVar[type[Any]]
    """A dataclass with the fields that every row has."""

    @property
    def spec(self) -> MeasuringCell:
        """The settings, as other cells have them."""
        return self

    @property
    def key(self) -> str:
        """sha256 of the settings."""
        return hashlib.sha256(canonical_json([self.kind, plain(asdict(self))]).encode()).hexdigest()

    @property
    def slug(self) -> str:
        """Readable and unique."""
        words = "-".join(
            f"{name}{value}"
            for name, value in asdict(self).items()
            if isinstance(value, (int, str))
        )
        return f"{self.kind}-{words}-{self.key[:10]}"

    @abstractmethod
    def measure(self) -> list[dict[str, Any]]:
        """The rows."""

    @classmethod
    def read(cls, content: Any) -> Measurement:
        """The record of such a measurement from its JSON; every field is checked."""
        try:
            content = msgspec.convert(content, dict[str, Any])
            record = msgspec.convert(
                {name: value for name, value in content.items() if name != "hash"}, Measurement
            )
            msgspec.convert(record.settings, cls)
            for row in record.rows:
                msgspec.convert(row, cls.row)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RecordError(f"not a measurement: {error}") from error
        if record.kind != cls.kind:
            raise RecordError(f"a measurement of {record.kind!r}, not of {cls.kind!r}")
        return record

    def run(self, work: Path, results: RunTable, data_dir: Path | None) -> str:
        """Measure and append."""
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        rows = tuple(self.measure())
        record = Measurement(
            self.kind, plain(asdict(self)), rows, machine(1), versions(), commit(), started
        )
        results.append({"hash": self.key, **plain(record)})
        return record.outcome


def measurement_source(filed: Filed, command: str) -> Source:
    """A record as the page shows it."""
    record: Measurement = filed.record
    facts = [("settings", ", ".join(f"{k} {v}" for k, v in record.settings.items()))]
    facts += [
        (f"row {i}", ", ".join(f"{k} {v}" for k, v in row.items()))
        for i, row in enumerate(record.rows, 1)
    ]
    place = f"{record.machine.cpu}, {record.machine.threads} thread(s)"
    facts += [
        ("machine", place),
        ("commit", record.commit or "unknown"),
        ("started", record.started),
    ]
    return Source(record.hash, filed.path, command, tuple(facts))

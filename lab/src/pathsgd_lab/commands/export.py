"""``pathsgd export RUN --out FILE``: a trained model for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table

from pathsgd_lab import flags
from pathsgd_lab.commands.common import make_console
from pathsgd_lab.tools.export import export, lstm_beside, trained_model


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's model as ONNX, check it, and compare size and latency with an LSTM."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run, as `pathsgd train` printed it."""
    out: Path | None = None
    """The file; None: model.onnx in the run's directory."""


def main(arguments: Sequence[str]) -> int:
    """Parse, write, compare."""
    options = flags.parse(ExportOptions, arguments, "pathsgd export")
    spec, model = trained_model(options.run_dir)
    path = options.out or options.run_dir / "model.onnx"
    ours = export(model, spec.task, path, spec.system.title)
    beside = lstm_beside(spec.task, spec.system.hidden or spec.task.paper.hidden)
    table = Table(
        "", "parameters", "bytes", "ms per sequence", "off torch by", "any length", box=None
    )
    table.columns[0].no_wrap = True
    for exported in (ours, beside):
        table.add_row(
            exported.name,
            f"{exported.parameters:,}",
            f"{exported.bytes:,}",
            f"{exported.milliseconds:.3f}",
            f"{exported.difference:.1e}",
            "yes" if exported.any_length else f"no, {spec.task.length} steps",
        )
    console = make_console()
    console.print(table)
    console.print(
        f"one sequence of {spec.task.length} steps, one thread; written to {path}", highlight=False
    )
    return 0

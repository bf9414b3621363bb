"""Handwritten digits read one pixel at a time, 784 steps, by a plain ReLU RNN.

    python examples/irnn.py

A well-known example elsewhere trains this net (a hundred units, identity start) by RMSprop at a
rate of 1e-6 for 900 epochs. Here are twenty, at a rate five hundred times as large. The run is the
lab's: Ctrl-C saves it, and the same command goes on. `pathsgd data fetch mnist` brings the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from pathsgd_lab.run.listeners import ProgressBar
from pathsgd_lab.run.record import Record
from pathsgd_lab.run.spec import default_spec, replace_settings
from pathsgd_lab.run.train import train


@dataclass(frozen=True)
class Options:
    """Sequential MNIST by PathAdam."""

    data_dir: Path | None = None
    """Where the four files of MNIST are; None: $PATHSGD_DATA, or the user's cache directory."""
    epochs: float = 20.0
    hidden: int = 100
    lr: float = 5e-4
    subsample: int = 1
    """k: average k x k pixels into one, for (28/k)^2 steps."""
    limit: int = 0
    """Use only the first so many images; 0: all."""
    valid_size: int = 5_000
    """Images kept for choosing the best parameters."""
    run_dir: Path = Path("runs/irnn")


def main(options: Options) -> Record:
    spec = replace_settings(
        default_spec("smnist", "rnn_path", "path-adam-relative"), batch_size=32, decay="linear",
        refresh_every=10,
        epochs=options.epochs, hidden=options.hidden, lr=options.lr, subsample=options.subsample,
        limit=options.limit, valid_size=options.valid_size,
    )  # fmt: skip
    progress = ProgressBar(spec, Console())
    record = train(
        spec, options.run_dir, resume=True, data_dir=options.data_dir, listeners=[progress]
    )
    print(f"{record.outcome}: test error {record.metrics['test']:.2f} % after {record.steps} steps")
    return record


if __name__ == "__main__":
    main(tyro.cli(Options))

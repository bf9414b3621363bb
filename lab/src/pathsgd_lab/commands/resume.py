"""``pathsgd resume DIRECTORY``: continue a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from pathsgd_lab import flags
from pathsgd_lab.commands.train import TrainOptions, train_and_show
from pathsgd_lab.run.train import spec_of


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run that was interrupted, bit for bit from its newest checkpoint."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of the run, as `pathsgd train` printed it."""
    data_dir: Path | None = None
    """Where the data lies; None: $PATHSGD_DATA, or the user's cache directory."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run's directory."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints."""
    quiet: bool = False
    """Print nothing but the end."""


def main(arguments: Sequence[str]) -> int:
    """Parse, continue, show."""
    options = flags.parse(ResumeOptions, arguments, "pathsgd resume")
    spec = spec_of(options.run_dir)
    same = TrainOptions(
        run=spec,
        resume=True,
        data_dir=options.data_dir,
        tensorboard=options.tensorboard,
        checkpoint_seconds=options.checkpoint_seconds,
        quiet=options.quiet,
    )
    return train_and_show(same, options.run_dir)

"""``pathsgd train TASK SYSTEM [OPTIMISER]``: one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pathsgd_lab import flags
from pathsgd_lab.commands.common import (
    RUNS,
    choices_help,
    make_console,
    show_record,
    wants_general_help,
)
from pathsgd_lab.errors import UsageError
from pathsgd_lab.run.listeners import Listener, ProgressBar, TensorBoard
from pathsgd_lab.run.spec import RunSpec
from pathsgd_lab.run.together import together
from pathsgd_lab.run.train import Stopped, train

USAGE = "pathsgd train TASK SYSTEM [OPTIMISER] [flags], or pathsgd train SPEC.json [flags]"


@dataclass(frozen=True)
class TrainOptions:
    """Train one system on one task.

    The run's files go to a directory of their own: settings, record, checkpoints. Ctrl-C saves and
    stops; `pathsgd resume DIRECTORY` goes on, bit for bit. `torchrun --nproc-per-node N --no-python
    pathsgd train ...` is the same run in N processes, each with its share of every batch.
    """

    run: Annotated[RunSpec, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """Directory of the run; None: runs/ and a name made from the settings."""
    resume: bool = False
    """Continue the run in its directory if one was begun there."""
    restart: bool = False
    """Forget the run in its directory and start anew."""
    data_dir: Path | None = None
    """Where the data lies; None: $PATHSGD_DATA, or the user's cache directory."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run's directory."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints."""
    quiet: bool = False
    """Print nothing but the end."""


def main(arguments: Sequence[str]) -> int:
    """Parse, train, show."""
    names, words = flags.split_names(arguments)
    if wants_general_help(names, words):
        print(choices_help(USAGE, "Train one system on one task."))
        return 0
    spec = flags.named_spec(names, USAGE)
    options = flags.parse(
        TrainOptions, words, f"pathsgd train {' '.join(names)}", TrainOptions(run=spec)
    )
    if options.resume and options.restart:
        raise UsageError("--resume goes on with a run, --restart begins it anew: give one of them")
    directory = options.run_dir or RUNS / options.run.slug
    return train_and_show(options, directory)


def train_and_show(options: TrainOptions, directory: Path) -> int:
    """Train with a progress bar; tell how to go on after an interruption."""
    with together() as processes:
        return _train_and_show(options, directory, shows=processes.rank == 0)


def _train_and_show(options: TrainOptions, directory: Path, shows: bool) -> int:
    """shows: of several processes only the first says something."""
    console = make_console()
    listeners: list[Listener] = (
        [] if options.quiet or not shows else [ProgressBar(options.run, console)]
    )
    if options.tensorboard and shows:
        listeners.append(TensorBoard(directory / "tensorboard"))
    try:
        record = train(
            options.run,
            directory,
            resume=options.resume,
            restart=options.restart,
            data_dir=options.data_dir,
            listeners=listeners,
            checkpoint_seconds=options.checkpoint_seconds,
        )
    except Stopped as stopped:
        if shows:
            console.print(
                f"Stopped at step {stopped.step} and saved. Go on with: pathsgd resume {directory}"
            )
        return 130
    if shows:
        show_record(record, directory / "summary.json", console)
    return 0

"""Training: a spec in, a record out, and continuing bit for bit after any interruption.

train(spec, directory) -> Record
resume(directory) -> Record
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pathsgd_lab.errors import CheckpointError, RunError
from pathsgd_lab.files import remove, write_text
from pathsgd_lab.run import checkpoint
from pathsgd_lab.run.clock import Interrupted
from pathsgd_lab.run.directory import RunDirectory
from pathsgd_lab.run.listeners import Listener
from pathsgd_lab.run.provenance import commit, machine, versions
from pathsgd_lab.run.record import Record, write_record
from pathsgd_lab.run.spec import RunSpec, spec_hash, spec_to_json
from pathsgd_lab.run.together import Together
from pathsgd_lab.run.trainer import Trainer


class Stopped(Exception):
    """The run was interrupted and its state saved."""

    def __init__(self, directory: Path | None, step: int) -> None:
        self.directory, self.step = directory, step
        super().__init__(f"stopped at step {step}")


@contextlib.contextmanager
def numerics(threads: int) -> Iterator[None]:
    """Process-wide settings of a run; restored afterwards, except that denormals count again."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    # Vanishing gradients become denormal numbers, which take a hundred times as long to multiply.
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


def train(
    spec: RunSpec,
    directory: Path | None = None,
    *,
    resume: bool = False,
    restart: bool = False,
    data_dir: Path | str | None = None,
    listeners: Sequence[Listener] = (),
    checkpoint_seconds: float = 30.0,
) -> Record:
    """Train as ``spec`` says, return the record; with a directory, save it and checkpoints there.

    resume: continue the run in ``directory`` if there is one; if it has ended, return its record.
    restart: begin anew; an existing run in ``directory`` is kept until this one has a checkpoint.
    Raises ``Stopped`` after Ctrl-C or SIGTERM, when the state is saved.
    """
    if directory is None:
        with numerics(spec.threads):
            return _run(_prepare(spec, data_dir), None, listeners, checkpoint_seconds)
    if Together().rank > 0:
        return _follow(spec, data_dir, checkpoint_seconds)
    run = RunDirectory(directory)
    with run.locked(), numerics(spec.threads):
        if resume and (record := run.finished(spec)) is not None:
            Together().from_first(record)
            return record
        if run.begun and not resume and not restart:
            raise RunError(
                f"{directory} has a run already: continue it with --resume, or start anew with "
                "--restart"
            )
        if run.begun and not restart and spec_hash(run.read_spec()) != spec_hash(spec):
            raise RunError(f"{directory} has a run with other settings: choose another directory")
        trainer = _prepare(spec, data_dir)
        with _keeping_the_old(run, restart or not run.begun):
            _begin_or_continue(trainer, run)
            record = _run(trainer, run, listeners, checkpoint_seconds)
        write_record(record, run.summary)
        remove([run.status])
        return record


def _follow(spec: RunSpec, data_dir: Path | str | None, checkpoint_seconds: float) -> Record:
    """Train beside the first process, which reads and writes the files of the run."""
    with numerics(spec.threads):
        trainer = _prepare(spec, data_dir)
        said = trainer.together.from_first(None)
        if isinstance(said, Record):  # the run had ended already
            return said
        if said is not None:
            trainer.load_state_dict(said)
        return _run(trainer, None, (), checkpoint_seconds)


@contextlib.contextmanager
def _keeping_the_old(run: RunDirectory, anew: bool) -> Iterator[None]:
    """Set aside what a new run would overwrite; restore it if that run saves no checkpoint."""
    try:
        if anew:
            run.set_aside()
        yield
    except BaseException:
        if anew and not checkpoint.paths(run.path):
            run.bring_back()
        raise


def spec_of(directory: Path) -> RunSpec:
    """The settings of the run in ``directory``."""
    run = RunDirectory(directory)
    with run.locked():
        return run.read_spec()


def resume(
    directory: Path,
    *,
    data_dir: Path | str | None = None,
    listeners: Sequence[Listener] = (),
    checkpoint_seconds: float = 30.0,
) -> Record:
    """Continue the run in ``directory``."""
    return train(
        spec_of(directory),
        directory,
        resume=True,
        data_dir=data_dir,
        listeners=listeners,
        checkpoint_seconds=checkpoint_seconds,
    )


def _prepare(spec: RunSpec, data_dir: Path | str | None) -> Trainer:
    torch.manual_seed(spec.seed)
    data = spec.task.prepare(data_dir)
    try:
        return Trainer(spec, data)
    except (
        ValueError,
        MemoryError,
    ) as error:  # settings that do not go with the data, or with the machine
        raise RunError(str(error) or "not enough memory for these settings") from error


def _begin_or_continue(trainer: Trainer, run: RunDirectory) -> None:
    """Load the newest checkpoint, if there is one, and open the log."""
    state = checkpoint.load_newest(run.path) if run.begun else None
    trainer.together.from_first(state)
    write_text(run.spec_file, json.dumps(spec_to_json(trainer.spec), indent=2) + "\n")
    if state is not None:
        _load(trainer, state, run)
        run.log.rewind(trainer.step)
        run.log.add("resume", step=trainer.step)
        return
    run.log.rewind(-1)
    spec = trainer.spec
    run.log.add(
        "start",
        hash=spec_hash(spec),
        spec=spec_to_json(spec),
        seed=spec.seed,
        time=trainer.started,
        machine=machine(spec.threads),
        versions=versions(),
        commit=commit(),
    )


def _load(trainer: Trainer, state: Any, run: RunDirectory) -> None:
    try:
        trainer.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"the checkpoint in {run.path} does not fit its run: {what}"
        ) from error


def _run(
    trainer: Trainer,
    run: RunDirectory | None,
    listeners: Sequence[Listener],
    checkpoint_seconds: float,
) -> Record:
    """The loop: train, evaluate, save, until the run has ended or is interrupted."""
    interrupted, together = Interrupted(), trainer.together
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
            listener.on_start(trainer.step)
        stack.enter_context(interrupted.watching())
        saved = time.monotonic()
        while (outcome := together.from_first(trainer.ended())) is None:
            if together.any(interrupted.requested):
                _save(trainer, run)
                if run is not None:
                    run.log.add("stopped", step=trainer.step)
                raise Stopped(run.path if run is not None else None, trainer.step)
            promotions = len(trainer.promotions)
            trainer.advance(interrupted)
            if run is not None and len(trainer.promotions) > promotions:
                run.log.add("promotion", **vars(trainer.promotions[-1]))
            if trainer.evaluation_due():
                _evaluate(trainer, run, listeners)
            status = trainer.status()
            for listener in listeners:
                listener.on_status(status)
            if together.from_first(
                run is not None and time.monotonic() - saved >= checkpoint_seconds
            ):
                _save(trainer, run)
                saved = time.monotonic()
        if outcome in ("finished", "timeout") and not (
            trainer.curve and trainer.curve[-1].step == trainer.step
        ):
            _evaluate(trainer, run, listeners)
        record = trainer.record(outcome)
        _save(trainer, run)
        if run is not None:
            run.log.add(
                "end",
                step=record.steps,
                outcome=record.outcome,
                metrics=record.metrics,
                detail=record.detail,
            )
        for listener in listeners:
            listener.on_end(record)
    return record


def _evaluate(trainer: Trainer, run: RunDirectory | None, listeners: Sequence[Listener]) -> None:
    point = trainer.evaluate()
    if run is not None:
        run.log.add("evaluation", **vars(point))
    for listener in listeners:
        listener.on_point(point)


def _save(trainer: Trainer, run: RunDirectory | None) -> None:
    """Write a checkpoint, where there is a directory; every process has a part in it."""
    if run is None:
        if trainer.together.count > 1:
            trainer.state_dict()
        return
    with trainer.clock.measuring("checkpoint"):
        run.log.flush()  # else a checkpoint could outlive what was logged before it
        checkpoint.save(run.path, trainer.step, trainer.state_dict())
        run.forget_previous()

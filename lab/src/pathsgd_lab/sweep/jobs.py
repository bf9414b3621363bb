"""Sweeps: many cells in parallel, each once, filed as soon as it has ended.

    run_cells(cells, results, work) -> outcomes

What is in the table already is not run again; at the end the table is packed.

A killed worker breaks its pool. The cells that were running are then suspects: everything else
continues in a new pool, and the suspects follow one by one, each alone in a pool (continuing from
their checkpoints). A cell that kills its worker every time costs only itself.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import joblib
from filelock import FileLock

from pathsgd_lab.files import NO_ROOM, make_folder, remove, write_text
from pathsgd_lab.run.train import Stopped
from pathsgd_lab.sweep.cells import Cell, Done, Places
from pathsgd_lab.sweep.cluster import ClusterKind, Parallel, cluster, died
from pathsgd_lab.sweep.results import RunTable


def execute(key: str, cell: Cell, places: Places, data_dir: Path | None) -> Done:
    """Run one cell here; an exception, except a full disk, fails the cell and not the sweep.

    Another sweep, or a worker that outlived its own, may be running the same cell: wait for it and
    take its result.
    """
    marker, results = places.marker(cell), RunTable(places.results, cell.read)
    outcome, detail = "known", ""
    try:
        make_folder(marker.parent)
        with FileLock(marker.with_name("cell.lock")):
            if not results.has(cell.key):
                write_text(marker, f"{os.getpid()} {places.sweep}", durable=False)
                outcome = cell.run(marker.parent, results, data_dir)
    except Stopped as stopped:
        outcome, detail = "stopped", str(stopped)
    except Exception as error:
        with contextlib.suppress(OSError):  # a disk that is full has no room for this either
            write_text(marker.with_name("error.txt"), traceback.format_exc())
        if (
            isinstance(error, OSError) and error.errno in NO_ROOM
        ):  # the other cells would meet the same
            remove([marker])
            raise
        outcome, detail = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    if outcome != "known":
        remove([marker])
    return Done(key, cell.slug, outcome, detail)


def run_cells(
    cells: Sequence[Cell],
    results: RunTable,
    work: Path,
    *,
    backend: ClusterKind = "loky",
    jobs: int | None = None,
    address: str | None = None,
    data_dir: Path | None = None,
    on_done: Callable[[Done], None] = lambda done: None,
) -> list[Done]:
    """Run every cell that is not filed yet; how each ended, in the order of ``cells``."""
    # Workers may have started in another directory, or on another machine with the same file
    # system.
    places = Places(results.folder.absolute(), work.absolute())
    for folder in (places.results, places.work):
        make_folder(folder)
    data_dir = None if data_dir is None else data_dir.absolute()
    unique = {cell.key: cell for cell in cells}
    finished = results.finished()
    ended = {k: Done(k, c.slug, "known") for k, c in unique.items() if k in finished}
    for done in ended.values():
        on_done(done)
    waiting = {key: cell for key, cell in unique.items() if key not in ended}

    def end(done: Done) -> None:
        ended[done.key] = done
        del waiting[done.key]
        on_done(done)

    with cluster(backend, jobs, address) as parallel:
        for batch, alone in _batches(waiting, places):
            calls = (joblib.delayed(execute)(cell.key, cell, places, data_dir) for cell in batch)
            if not _survives(parallel, calls, end) and alone:
                (cell,) = batch
                end(Done(cell.key, cell.slug, "killed", "its worker process was killed twice"))
    results.pack()
    return [ended[key] for key in unique]


def _survives(parallel: Parallel, calls: Iterator[Any], end: Callable[[Done], None]) -> bool:
    """Run the calls; False if a worker was killed on the way."""
    try:
        for done in parallel(calls):
            end(done)
    except Exception as error:
        if not died(error):
            raise
        return False
    return True


def _batches(waiting: dict[str, Cell], places: Places) -> Iterator[tuple[list[Cell], bool]]:
    """What to run next: all that is not under suspicion, then the suspects one by one."""
    suspects: dict[str, Cell] = {}
    while waiting:
        batch = [cell for key, cell in waiting.items() if key not in suspects]
        if batch:
            yield batch, False
        else:
            yield [next(iter(waiting.values()))], True
        for key, cell in waiting.items():
            if places.left_running(cell):
                suspects[key] = cell
                remove([places.marker(cell)])

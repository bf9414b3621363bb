"""Several processes with a gloo group between them, on one machine, for a test of a few seconds.

`in_processes(4, work, *args)` calls `work(*args)` in 4 processes, each with its rank in an
initialised process group, and returns the 4 results. Processes are forked: what the test has
imported is there already.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

HANG = timedelta(days=1)
"""How long a rank waits for the others: pytest ends a test that hangs."""


def in_processes(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of `work(*args)` in every rank; an error of a rank comes with its traceback."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [
            context.Process(target=_rank, args=(rank, world, folder, work, args))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        try:
            _join(ranks, folder)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(world)]


def _join(ranks: list[ForkProcess], folder: Path) -> None:
    """Wait for all ranks, or for the first that fails: the others may wait for it for ever."""
    running = {process.sentinel: rank for rank, process in enumerate(ranks)}
    while running:
        for ended in wait(list(running)):
            rank = running.pop(ended)  # type: ignore[call-overload]
            if not (folder / f"result{rank}").exists():
                error = folder / f"error{rank}"
                ranks[rank].join()
                what = error.read_text() if error.exists() else f"exit code {ranks[rank].exitcode}"
                raise RuntimeError(f"rank {rank} of {len(ranks)} failed: {what}")


def _rank(
    rank: int, world: int, folder: Path, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo", f"file://{folder}/store", rank=rank, world_size=world, timeout=HANG
        )
        result = work(*args)
        (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    except BaseException:
        (folder / f"error{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(0)  # no clean-up of what the test's own process will clean up

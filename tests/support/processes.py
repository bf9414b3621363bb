"""Several processes with a gloo group between them, on one machine, for a test of a few seconds.

`in_processes(4, work, *args)` calls `work(*args)` in four processes, each with its rank in an initialised process
group, and returns the four results. Processes are forked: what the test has imported is there already.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_SECONDS = 120


def in_processes(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of `work(*args)` in every rank; what a rank raises is raised here, with its traceback."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, world, folder, work, args))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(_SECONDS)
        for rank, process in enumerate(ranks):
            if process.exitcode is None:
                process.kill()
                process.join()
                raise TimeoutError(f"rank {rank} of {world} did not end within {_SECONDS} s")
        results = []
        for rank, process in enumerate(ranks):
            file = Path(folder) / f"result{rank}"
            error = Path(folder) / f"error{rank}"
            if error.exists() or not file.exists():
                told = error.read_text() if error.exists() else f"exit code {process.exitcode}"
                raise RuntimeError(f"rank {rank} of {world} failed: {told}")
            results.append(pickle.loads(file.read_bytes()))
        return results


def _rank(
    rank: int, world: int, folder: str, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo",
            f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=_SECONDS),
        )
        result = work(*args)
        (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
    except BaseException:
        (Path(folder) / f"error{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(0)  # no clean-up of what the test's own process will clean up

"""Sweeps: many cells in parallel, each once, with a result file as soon as it is done.

    run_cells(cells, results, work) -> outcomes

A cell is anything with a key, a name and a ``run``; a training run is one (``RunCell``).  What has a result file is
not run again.  Cells run in processes of joblib (loky) on this machine, or on the workers of a Dask or Ray cluster.

When a worker is killed, its pool dies with it.  The cells that were under way are then suspects: everything else goes
on in a new pool, and the suspects follow one by one, each alone with a pool (continuing from their checkpoints), so
that a cell which kills its worker every time costs itself only.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from pathsgd.lab import checkpoint
from pathsgd.lab.listeners import StatusFile
from pathsgd.lab.record import FINAL, RecordError, read_record, write_record, write_text
from pathsgd.lab.spec import RunSpec, spec_hash
from pathsgd.lab.train import RunDirectory, RunError, Stopped, train

Backend = Literal["loky", "dask", "ray"]
Parallel = Callable[[Iterator[Any]], Iterator[Any]]
"""Runs delayed calls and gives their results as they come."""


class Cell(Protocol):
    """One job of a sweep."""

    @property
    def key(self) -> str:
        """Equal for equal jobs, whatever version wrote the result."""
        ...

    @property
    def slug(self) -> str:
        """A name for files."""
        ...

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Do the job: write ``result`` in one step, keep files in the directory ``work``; the outcome in a word."""
        ...


@dataclass(frozen=True)
class RunCell:
    """A training run as a cell."""

    spec: RunSpec

    @property
    def key(self) -> str:
        """The spec's hash."""
        return spec_hash(self.spec)

    @property
    def slug(self) -> str:
        """The spec's."""
        return self.spec.slug

    def run(self, work: Path, result: Path, data_dir: Path | None) -> str:
        """Train, continuing what an earlier process left; checkpoints go when the record is written."""
        status = StatusFile(RunDirectory(work).status)
        record = train(self.spec, work, resume=True, data_dir=data_dir, listeners=[status])
        write_record(record, result)
        for path in checkpoint.paths(work):
            path.unlink()
        return record.outcome


@dataclass(frozen=True)
class Done:
    """How a cell ended."""

    key: str
    slug: str
    outcome: str
    """A record's outcome, "known" (there was a result before), "failed" (an exception) or "killed" (its worker)."""
    detail: str = ""


@dataclass(frozen=True)
class Places:
    """Directories of a sweep."""

    results: Path
    """One small file per finished cell."""
    work: Path
    """One directory per cell, for logs and checkpoints."""

    def result(self, cell: Cell) -> Path:
        """The cell's result file."""
        return self.results / f"{cell.slug}.json"

    def marker(self, cell: Cell) -> Path:
        """A file that is there while the cell is being worked on."""
        return self.work / cell.slug / "running"


def execute(key: str, cell: Cell, places: Places, data_dir: Path | None) -> Done:
    """Run one cell in this process; an exception fails the cell, not the sweep."""
    marker = places.marker(cell)
    write_text(marker, str(os.getpid()))
    try:
        outcome, detail = cell.run(marker.parent, places.result(cell), data_dir), ""
    except Stopped as stopped:
        outcome, detail = "stopped", str(stopped)
    except Exception as error:
        (marker.parent / "error.txt").write_text(traceback.format_exc(), "utf-8")
        outcome, detail = "failed", f"{type(error).__name__}: {' '.join(str(error).split())}"
    marker.unlink()
    return Done(key, cell.slug, outcome, detail)


def known_results(results: Path, read: Callable[[Path], Any] = read_record) -> dict[str, Path]:
    """Finished cells with a file in a directory, by key under today's specs; files of another kind are left alone."""
    known = {}
    for path in sorted(results.glob("*.json")):
        with contextlib.suppress(RecordError):
            record = read(path)
            if record.outcome in FINAL:
                known[record.hash] = path
    return known


def run_cells(
    cells: Sequence[Cell],
    places: Places,
    *,
    backend: Backend = "loky",
    jobs: int | None = None,
    address: str | None = None,
    data_dir: Path | None = None,
    on_done: Callable[[Done], None] = lambda done: None,
    read: Callable[[Path], Any] = read_record,
) -> list[Done]:
    """Run every cell that has no result yet; how each ended, in the order of ``cells``."""
    # Workers may have been started in another directory, or on another machine with the same file system.
    places = Places(places.results.absolute(), places.work.absolute())
    data_dir = None if data_dir is None else data_dir.absolute()
    unique = {cell.key: cell for cell in cells}
    finished = known_results(places.results, read)
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
    for cell in waiting.values():  # left by a process that was killed with the whole sweep, long ago
        places.marker(cell).unlink(missing_ok=True)
    while waiting:
        batch = [cell for key, cell in waiting.items() if key not in suspects]
        if batch:
            yield batch, False
        else:
            yield [next(iter(waiting.values()))], True
        for key, cell in waiting.items():
            if places.marker(cell).exists():
                suspects[key] = cell
                places.marker(cell).unlink()


def died(error: BaseException) -> bool:
    """Whether an error says that a worker process was killed."""
    # Dask's and Ray's own classes are known by name: neither need be installed.
    cluster_errors = ("KilledWorker", "WorkerCrashedError", "RayActorError", "ActorDiedError")
    return isinstance(error, TerminatedWorkerError) or type(error).__name__ in cluster_errors


@contextlib.contextmanager
def cluster(backend: Backend, jobs: int | None, address: str | None) -> Iterator[Parallel]:
    """Something that runs delayed calls in parallel and gives their results as they come."""
    count = jobs or joblib.cpu_count()
    if backend == "loky":
        # One job in joblib means this very process, which a kill would take along: rather a pool of two, fed one
        # call at a time. And a worker's libraries must not start threads of their own on cores that are taken.
        with joblib.parallel_config(backend="loky", n_jobs=max(2, count), inner_max_num_threads=1):
            yield _as_they_come(1 if count == 1 else "2*n_jobs")
    elif backend == "dask":
        with _dask_client(count, address) as client:
            yield lambda calls: _dask_results(client, calls)
    else:
        with _ray(count, address), joblib.parallel_config(backend="ray", n_jobs=count):
            # Ray's backend gives its results all together; the records are written as they come all the same.
            yield lambda calls: iter(joblib.Parallel()(calls))


def _as_they_come(pre_dispatch: int | str) -> Parallel:
    return lambda calls: joblib.Parallel(return_as="generator_unordered", pre_dispatch=pre_dispatch)(calls)


def _dask_results(client: Any, calls: Iterator[Any]) -> Iterator[Any]:
    """Results of delayed calls from Dask's own futures, as they come; at the end, the error of one that was killed.

    Not by joblib's Dask backend, which waits for ever for a task that Dask has given up because its workers died.
    """
    from distributed import KilledWorker, as_completed

    futures = as_completed(client.submit(function, *args, **named, pure=False) for function, args, named in calls)
    killed = None
    for future in futures:
        if isinstance(future.exception(), KilledWorker):
            killed = future.exception()
        else:
            result = future.result()
            future.release()  # else a killed worker would take the result along, and Dask would run the cell again
            yield result
    if killed is not None:
        raise killed


def _dask_client(count: int, address: str | None) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise RunError("the dask backend needs Dask: pip install 'pathsgd[cluster]'") from None
    if address:
        return Client(address)
    return Client(n_workers=count, threads_per_worker=1, dashboard_address=None)


@contextlib.contextmanager
def _ray(count: int, address: str | None) -> Iterator[None]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise RunError("the ray backend needs Ray: pip install 'pathsgd[cluster]'") from None
    register_ray()
    ray.init(address=address, num_cpus=None if address else count)
    try:
        yield
    finally:
        ray.shutdown()

"""Where cells run: joblib's processes on this machine, or workers of a Dask or Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from pathsgd_lab.errors import RunError

ClusterKind = Literal["loky", "dask", "ray"]
Parallel = Callable[[Iterator[Any]], Iterator[Any]]
"""Runs delayed calls and gives their results as they come."""


def died(error: BaseException) -> bool:
    """Whether an error says that a worker process was killed."""
    # Dask's and Ray's own classes are known by name: neither need be installed.
    cluster_errors = ("KilledWorker", "WorkerCrashedError", "RayActorError", "ActorDiedError")
    return isinstance(error, TerminatedWorkerError) or type(error).__name__ in cluster_errors


@contextlib.contextmanager
def cluster(backend: ClusterKind, jobs: int | None, address: str | None) -> Iterator[Parallel]:
    """Something that runs delayed calls in parallel and gives their results as they come."""
    count = jobs or joblib.cpu_count()
    if backend == "loky":
        # One job in joblib means this very process, which a kill would take along: rather a pool of
        # two, fed one call at a time. And a worker's libraries must not start threads of their own
        # on cores that are taken.
        with joblib.parallel_config(backend="loky", n_jobs=max(2, count), inner_max_num_threads=1):
            yield _as_they_come(1 if count == 1 else "2*n_jobs")
    elif backend == "dask":
        with _dask_client(count, address) as client:
            yield lambda calls: _dask_results(client, calls)
    else:
        with _ray(count, address), joblib.parallel_config(backend="ray", n_jobs=count):
            # Ray's backend gives its results all together; the records are written as they come all
            # the same.
            yield lambda calls: iter(joblib.Parallel()(calls))


def _as_they_come(pre_dispatch: int | str) -> Parallel:
    return lambda calls: joblib.Parallel(
        return_as="generator_unordered", pre_dispatch=pre_dispatch
    )(calls)


def _dask_results(client: Any, calls: Iterator[Any]) -> Iterator[Any]:
    """Results of Dask's futures as they come; at the end the error of one that was killed.

    Not by joblib's Dask backend, which waits for ever for a task that Dask has given up because its
    workers died.
    """
    from distributed import KilledWorker, as_completed

    futures = as_completed(
        client.submit(function, *args, **named, pure=False) for function, args, named in calls
    )
    killed = None
    for future in futures:
        if isinstance(future.exception(), KilledWorker):
            killed = future.exception()
        else:
            result = future.result()
            future.release()  # else Dask runs the cell again if the worker is killed later
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

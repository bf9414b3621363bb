"""Every kernel this machine can run, and the fallback, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pathsgd._native import calls, loader


def _available() -> dict[str, loader.Loaded]:
    found = {"torch": loader.Loaded(loader.Backend("torch", True, "test"), None)}
    generic = loader._open("kernel_generic")[0]
    level = generic.pathsgd_processor_level() if generic is not None else -1
    for name in loader.KERNELS[: level + 1]:
        library, problem = loader._open(f"kernel_{name}")
        if not problem and not loader._lend_threads(library):
            found[name] = loader.Loaded(loader.Backend(name, True, "test"), library)
    return found


BACKENDS = _available()


@pytest.fixture(params=sorted(BACKENDS))
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the kernel in use during the test."""
    monkeypatch.setattr(calls, "load", lambda: BACKENDS[request.param])
    return request.param


@pytest.fixture(params=sorted(set(BACKENDS) - {"torch"}))
def native_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same without the fallback, for what torch does in ways of its own."""
    monkeypatch.setattr(calls, "load", lambda: BACKENDS[request.param])
    return request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

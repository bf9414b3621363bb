"""Kernels of this machine by name, without the fallback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pathsgd._native import calls, loader


@pytest.fixture(params=loader.KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> loader.Loaded:
    """Every kernel in turn; where the processor or the build lacks one, the one that loads by itself stands in."""
    best = loader.load()
    generic = loader._open("kernel_generic")[0]
    if generic is not None and loader.KERNELS.index(request.param) <= generic.pathsgd_processor_level():
        library, problem = loader._open(f"kernel_{request.param}")
        assert not problem and not loader._lend_threads(library)
        best = loader.Loaded(loader.Backend(request.param, True, "test"), library)
    monkeypatch.setattr(calls, "load", lambda: best)
    return best


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

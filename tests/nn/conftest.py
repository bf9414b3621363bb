"""Every kernel this machine can run, and the fallback, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pathsgd.kernels import native
from support.kernels import BACKENDS, NATIVE


@pytest.fixture(params=sorted(BACKENDS))
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the kernel in use during the test."""
    monkeypatch.setattr(native, "load", lambda: BACKENDS[request.param])
    return request.param


@pytest.fixture(params=NATIVE)
def native_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same without the fallback, for what torch does in ways of its own."""
    monkeypatch.setattr(native, "load", lambda: BACKENDS[request.param])
    return request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

"""Names of torch's functions: the quick way says what torch itself says."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import Tensor
from torch.overrides import get_overridable_functions, resolve_name

from pathsgd.network.record import calls

pytestmark = pytest.mark.filterwarnings("ignore")


def test_quick_names_are_those_of_torch() -> None:
    known = [f for functions in get_overridable_functions().values() for f in functions]
    known += [getattr(Tensor, name).__get__ for name in ("shape", "data", "T", "grad", "is_cuda")]
    quick = [(f, calls._quick_name(f)) for f in known]
    assert sum(name is not None for _, name in quick) > 0.8 * len(quick)
    for function, name in quick:
        slow = resolve_name(function)
        if name is not None and slow:
            assert calls._canonical(name) == calls._canonical(slow), (name, slow)


def test_recording_does_not_list_all_of_torch() -> None:
    program = (
        "import torch, pathsgd, torch.overrides as o; n = torch.nn; "
        "pathsgd.gamma_sq(n.Sequential(n.Linear(3, 4), n.ReLU(), n.RNN(4, 2, "
        "nonlinearity='relu')), torch.ones(5, 3)); "
        "print(o._get_overridable_functions.cache_info().misses)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 0

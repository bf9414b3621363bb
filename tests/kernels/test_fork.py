"""After a fork the parent's threads are gone.

The kernel must neither wait for them nor give other results.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("where", ["workers", "fork"])
def test_the_kernel_after_a_fork(where: str) -> None:
    program = Path(__file__).with_name("forks.py")
    run = subprocess.run([sys.executable, program, where], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

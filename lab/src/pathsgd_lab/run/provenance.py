"""Where a result comes from: machine, versions, commit; neither host nor directory."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pathsgd_lab import __version__


@dataclass(frozen=True)
class Machine:
    """Where a run was made, as far as it matters to its speed."""

    cpu: str
    cores: int
    system: str
    threads: int


def machine(threads: int) -> Machine:
    """This machine, without a name."""
    return Machine(
        _cpu_name(), os.cpu_count() or 1, f"{platform.system()} {platform.machine()}", threads
    )


@functools.cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows a little
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """What the result may depend on."""
    return {
        "pathsgd": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@functools.cache
def commit() -> str:
    """Commit of the running source, with a + for uncommitted changes; empty outside a work tree."""
    here = Path(__file__).parent
    try:
        _git(
            here, "ls-files", "--error-unmatch", Path(__file__).name
        )  # an installed copy may lie in another's tree
        revision = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+" if changed else "")


def _git(directory: Path, *words: str) -> str:
    # `git status` otherwise rewrites the index; a run that is killed would leave index.lock behind.
    command = ["git", "--no-optional-locks", "-C", str(directory), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

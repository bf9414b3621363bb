"""The kernel's build: right at every vector width, and dispensable."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pathsgd
import pathsgd.nn
from support.harness import COMPILER, build_harness, check, run

PACKAGE = Path(pathsgd.__file__).parent
PROJECT = Path(__file__).parents[2]


def test_the_kernels_against_plain_loops(tmp_path: Path) -> None:
    """64 bytes is the shape of the AVX-512 build. tests/fuzz has 16, under sanitizers."""
    if COMPILER is None:
        assert pathsgd.nn.backend().name == "torch"
        return
    check(run(build_harness(tmp_path, 64, [])))


def test_a_compiler_means_a_kernel() -> None:
    """The build skips what fails: this is where a broken build shows."""
    built = {path.name for path in (PACKAGE / "kernels").glob("*.so")}
    if COMPILER is None:
        assert pathsgd.nn.backend().name == "torch"
    else:
        assert {"kernel_generic.so", "threads.so"} <= built, "install the package again"


def test_without_a_compiler_the_fallback_works(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, tmp_path)
    environment = os.environ | {"CC": "false", "CXX": "false", "PYTHONPATH": str(tmp_path / "src")}
    build = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=tmp_path, env=environment)
    assert build.returncode == 0, build.stderr
    assert "kernel_generic" in build.stdout + build.stderr and not list(tmp_path.rglob("*.so"))
    program = """
import torch, pathsgd.nn
rnn = pathsgd.nn.RNN(2, 5, nonlinearity="relu")
rnn(torch.rand(4, 3, 2))[0].sum().backward()
assert rnn.weight_hh_l0.grad is not None
print(pathsgd.nn.backend())
"""
    used = run(sys.executable, "-c", program, cwd=tmp_path, env=environment)
    assert used.stdout.startswith("pure torch fallback: no kernel was built"), (
        used.stdout + used.stderr
    )

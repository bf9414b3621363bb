"""The kernel's build: clean under sanitizers, right at every vector width, and dispensable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pathsgd
import pathsgd.nn

PACKAGE = Path(pathsgd.__file__).parent
PROJECT = Path(__file__).parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=280, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(("vector_bytes", "flags"), [(16, SANITIZERS), (64, [])])
def test_the_kernels_against_plain_loops(vector_bytes: int, flags: list[str], tmp_path: Path) -> None:
    """64 bytes is the shape of the AVX-512 build; the compiler makes it of shorter vectors for any processor."""
    if COMPILER is None:
        assert pathsgd.nn.backend().name == "torch"
        return
    folder = PACKAGE / "_native" / "src"
    kernel = sorted(path for path in folder.glob("*.cpp") if path.name != "threads.cpp")
    sources = [Path(__file__).with_name("harness.cpp"), *kernel]
    width = f"-DPATHSGD_VECTOR_BYTES={vector_bytes}"
    common = ["-std=c++17", "-O0", "-ffp-contract=fast", "-Wno-psabi", width, f"-I{folder}"]
    build = run(COMPILER, *common, *flags, *sources, "-o", tmp_path / "harness")
    assert build.returncode == 0, build.stderr
    result = run(tmp_path / "harness")
    assert result.returncode == 0 and result.stdout.endswith("0 failures\n"), result.stdout + result.stderr


def test_a_compiler_means_a_kernel() -> None:
    """The build skips what fails: this is where a broken build shows."""
    built = {path.name for path in (PACKAGE / "_native").glob("*.so")}
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
    assert used.stdout.startswith("pure torch fallback: no kernel was built"), used.stdout + used.stderr

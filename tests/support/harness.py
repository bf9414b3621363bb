"""The kernels with a program that compares them with plain loops (tests/kernels/harness.cpp)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pathsgd

COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
_PROGRAM = Path(__file__).parents[1] / "kernels" / "harness.cpp"


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )  # type: ignore[call-overload]


def build_harness(folder: Path, vector_bytes: int, flags: list[str]) -> Path:
    """The program for vectors of this many bytes; the compiler splits them where it must."""
    assert COMPILER is not None
    sources = Path(pathsgd.__file__).parent / "kernels" / "src"
    kernel = sorted(path for path in sources.glob("*.cpp") if path.name != "threads.cpp")
    width = f"-DPATHSGD_VECTOR_BYTES={vector_bytes}"
    common = ["-std=c++17", "-O0", "-ffp-contract=fast", "-Wno-psabi", width, f"-I{sources}"]
    build = run(COMPILER, *common, *flags, _PROGRAM, *kernel, "-o", folder / "harness")
    assert build.returncode == 0, build.stderr
    return folder / "harness"


def check(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0 and result.stdout.endswith("0 failures\n"), (
        result.stdout + result.stderr
    )

"""Builds the optional native kernel; everything else is in pyproject.toml.

One source, one library per kind of processor, chosen at run time. These are plain C libraries, not
Python modules, and need neither torch nor Python headers. Without a working C++ compiler each is
skipped with a message and the package uses its pure-torch fallback.
"""

import copy
import os
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/pathsgd/kernels/src")
THREADS = str(FOLDER / "threads.cpp")
KERNEL = sorted(str(path) for path in FOLDER.glob("*.cpp") if path.name != "threads.cpp")
HEADERS = sorted(str(path) for path in FOLDER.rglob("*.h"))
# Without errno a square root is one instruction, so loops with it are vectorised; a pragma in the
# source is not enough.
FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden"]
PROCESSORS = {  # what takes the compiler longest comes first: they are built side by side
    "avx512": [
        "-mavx512f",
        "-mavx512dq",
        "-mavx512bw",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
    "avx2": ["-mavx2", "-mfma"],
    "generic": [],
}


def library(name: str, sources: list[str], flags: list[str]) -> Extension:
    return Extension(
        f"pathsgd.kernels.{name}",
        sources,
        depends=HEADERS,
        extra_compile_args=FLAGS + flags,
        language="c++",
        optional=True,
    )


def libraries() -> list[Extension]:
    is_x86 = sysconfig.get_platform().endswith(("x86_64", "amd64"))
    kernels = [
        library(f"kernel_{name}", KERNEL, flags)
        for name, flags in PROCESSORS.items()
        if is_x86 or name == "generic"
    ]
    # OpenMP at compile time only: at run time its symbols come from the runtime that torch loaded.
    return [*kernels, library("threads", [THREADS], ["-fopenmp"])]


class BuildLibraries(build_ext):
    """build_ext for libraries that Python does not import: plain names, separate object folders."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count()

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        # Threads that build extensions share this object: each gets a copy with its own folder.
        alone = copy.copy(self)
        alone.build_temp = str(Path(self.build_temp) / ext.name)
        super(BuildLibraries, alone).build_extension(ext)


class TagWheel(bdist_wheel):
    """The libraries fit a platform and any Python: they are not its modules."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(ext_modules=libraries(), cmdclass={"build_ext": BuildLibraries, "bdist_wheel": TagWheel})

"""Every kernel this machine can run, and torch alone, by name."""

from __future__ import annotations

from pathsgd.kernels import loader


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
NATIVE = sorted(set(BACKENDS) - {"torch"})

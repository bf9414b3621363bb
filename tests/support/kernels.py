"""Every kernel this machine can run, and torch alone, by name."""

from __future__ import annotations

from pathsgd.kernels import native


def _available() -> dict[str, native.Loaded]:
    found = {"torch": native.Loaded(native.Backend("torch", True, "test"), None)}
    generic = native._open("kernel_generic")[0]
    level = generic.pathsgd_processor_level() if generic is not None else -1
    for name in native.KERNELS[: level + 1]:
        library, problem = native._open(f"kernel_{name}")
        if not problem and not native._lend_threads(library):
            found[name] = native.Loaded(native.Backend(name, True, "test"), library)
    return found


BACKENDS = _available()
NATIVE = sorted(set(BACKENDS) - {"torch"})

"""A public name that the API page lacks is a warning, and warnings are errors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sphinx.util import logging

import pathsgd

MODULES = {"pathsgd": pathsgd, "pathsgd.optim": pathsgd.optim, "pathsgd.nn": pathsgd.nn}


def public_names() -> list[str]:
    """Every name in the `__all__` of the packages that users import, modules excluded."""
    return [
        f"{package}.{name}"
        for package, module in MODULES.items()
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
    ]


def check(app: Any, env: Any) -> None:
    """Sphinx's hook, once everything is read."""
    documented = set(env.get_domain("py").objects)
    for name in public_names():
        if name not in documented:
            logging.getLogger(__name__).warning("%s is public and not in docs/api.md", name)


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}

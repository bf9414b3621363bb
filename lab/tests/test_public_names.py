"""The lab and the examples use only the library's public modules and the names these list."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "pathsgd",
    "pathsgd.errors",
    "pathsgd.nn",
    "pathsgd.nn.functional",
    "pathsgd.nn.init",
    "pathsgd.optim",
)
"""The modules that users import from."""
SOURCES = sorted(
    path
    for place in ("lab/src", "studies", "examples")
    for path in ROOT.glob(f"{place}/**/*.py")
    if "tests" not in path.parts
)


def names_of(module: str) -> set[str]:
    """What a public module offers: its `__all__`, or the names it defines without an underscore."""
    found = importlib.import_module(module)
    return set(getattr(found, "__all__", [name for name in vars(found) if name[0] != "_"]))


def written_out(node: ast.AST) -> str:
    """a.b.c for an attribute of an attribute of a name, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    before = written_out(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before else ""  # type: ignore[attr-defined]


def used(tree: ast.AST) -> Iterator[str]:
    """Every name of the library in a source, from `pathsgd` on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield written_out(node)


def is_public(name: str) -> bool:
    """Whether a dotted name starts with a public name of a public module; attributes follow."""
    parts = name.split(".")
    if name in PUBLIC:
        return True
    module = max((m for m in PUBLIC if name.startswith(f"{m}.")), key=len)
    return parts[module.count(".") + 1] in {*names_of(module), "__version__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_names_of_the_library_are_used(path: Path) -> None:
    names = {name for name in used(ast.parse(path.read_text())) if name.split(".")[0] == "pathsgd"}
    assert [name for name in sorted(names) if not is_public(name)] == []


def test_private_names_would_be_found() -> None:
    source = (
        "import pathsgd\nfrom pathsgd.paths.kappa import kappa\n"
        "pathsgd.optim.growth.LIMIT\npathsgd.kappa"
    )
    private = {name for name in used(ast.parse(source)) if not is_public(name)}
    assert {"pathsgd.paths.kappa.kappa", "pathsgd.optim.growth.LIMIT"} <= private
    assert "pathsgd.kappa" not in private

"""The list of torch's private interfaces is complete and correct; optional ones may be missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pathsgd
from pathsgd import torch_private
from pathsgd.optim import ranks
from pathsgd.torch_private import PRIVATE

ROOT = Path(pathsgd.__file__).parent


def dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def used(path: Path) -> Iterator[str]:
    """Private names of torch in a file, written out or imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from (name for a in node.names if is_private(name := f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            name = f"torch.{name}" if name.startswith("Tensor.") else name
            if name.startswith("torch.") and is_private(name):
                yield name


def is_listed(name: str) -> bool:
    # A part of a listed name is the way to it, and what a listed name holds belongs to it.
    return any(
        name == known or known.startswith(f"{name}.") or name.startswith(f"{known}.")
        for known in PRIVATE
    )


def test_every_private_interface_is_on_the_list() -> None:
    missing = {name for path in ROOT.rglob("*.py") for name in used(path) if not is_listed(name)}
    assert not missing


@pytest.mark.parametrize("name", PRIVATE)
def test_this_torch_has_it(name: str) -> None:
    import torch.utils._device
    import torch.utils._pytree

    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part)


def test_without_a_store_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    assert torch_private.default_store() is None
    with pytest.raises(RuntimeError, match="example_inputs="):
        ranks._store()


def test_without_the_active_module_wrappers_are_still_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(DistributedDataParallel, "_active_ddp_module")
    assert torch_private.active_ddp() is None and ranks.active_peers() is None


def test_without_version_counters_values_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._autograd, "_unsafe_set_version_counter")
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
    )
    before = {name: b.clone() for name, b in model.named_buffers()}
    pathsgd.gamma_sq(model, torch.rand(4, 2))
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())

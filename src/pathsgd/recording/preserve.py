"""Measuring leaves a model exactly as it was found: whatever its forward pass changes is put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_Container = dict | list | set | deque


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Undo what the block does to modules' attributes, to their tensors and to the random state, also if it raises.

    Parameters need no copy: recording refuses every operation that would change one.
    """
    containers, tensors = _state(model)
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        try:
            yield
        finally:
            for tensor, version, before in tensors:
                if tensor._version != version:
                    tensor.detach().copy_(before)
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
            for container, content in containers:
                container.clear()
                _refill(container, content)


def _state(model: nn.Module) -> tuple[list[tuple[Any, Any]], list[tuple[Tensor, int, Tensor]]]:
    """Every container reachable from the modules, with its content; every tensor in them but the parameters."""
    containers: list[tuple[Any, Any]] = []
    tensors: dict[int, tuple[Tensor, int, Tensor]] = {}
    waiting: list[Any] = [vars(m) for m in model.modules()]
    seen: set[int] = set()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _Container):
            containers.append((item, item.copy()))
            waiting.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, tuple):
            waiting.extend(item)
        elif isinstance(item, Tensor) and not isinstance(item, nn.Parameter):
            tensors[id(item)] = (item, item._version, item.detach().clone())
    return containers, list(tensors.values())


def _refill(container: Any, content: Any) -> None:
    container.extend(content) if isinstance(container, (list, deque)) else container.update(content)

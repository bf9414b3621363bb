"""Measuring leaves a model exactly as it was found: whatever its forward pass changes is put back."""

from __future__ import annotations

import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathsgd.torch_private import set_version

_Container = dict | list | set | deque
_MISSING = object()


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Undo what the block does to modules' attributes, to their tensors and to the random state, also if it raises.

    Parameters need no copy: recording refuses every operation that would change one. The block may ask whether
    Python's and numpy's dice still lie as they did.
    """
    containers, tensors = _state(model)
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with (
        torch.random.fork_rng(devices=devices),
        _other_random_states() as untouched,
        torch.no_grad(),
    ):
        try:
            yield untouched
        finally:
            for tensor, version, before in tensors:
                _restore(tensor, version, before)
            for container, content in containers:
                _put_back(container, content)


@contextmanager
def _other_random_states() -> Iterator[Callable[[], bool]]:
    """Python's and numpy's, which a forward pass may draw from as well; the block may ask whether it has."""
    of_python = random.getstate()
    of_numpy: Any = np.random.get_state()  # noqa: NPY002

    def untouched() -> bool:
        now: Any = np.random.get_state()  # noqa: NPY002
        return (
            random.getstate() == of_python
            and bool((now[1] == of_numpy[1]).all())
            and now[2] == of_numpy[2]
        )

    try:
        yield untouched
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _state(
    model: nn.Module,
) -> tuple[list[tuple[Any, Any]], list[tuple[Tensor, int | None, Tensor]]]:
    """Every container reachable from the modules, with its content; every tensor in them but the parameters."""
    containers: list[tuple[Any, Any]] = []
    tensors: dict[int, tuple[Tensor, int | None, Tensor]] = {}
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
            tensors[id(item)] = (item, _version(item), item.detach().clone())
    return containers, list(tensors.values())


def _version(tensor: Tensor) -> int | None:
    return (
        None if tensor.is_inference() else tensor._version
    )  # a tensor made for inference has none


def _restore(tensor: Tensor, version: int | None, before: Tensor) -> None:
    if version is None:
        with torch.inference_mode():  # the only place where such a tensor can be changed
            tensor.copy_(before)
    elif tensor._version != version:
        tensor.detach().copy_(before)
        set_version(tensor, version)


def _put_back(container: Any, content: Any) -> None:
    """Undo what was changed in a container, and nothing else: another thread may be using it."""
    if isinstance(container, dict):
        now, before = list(container.items()), list(content.items())
        if len(now) == len(before) and all(
            a is c and b is d for (a, b), (c, d) in zip(now, before)
        ):
            return
        for key in [key for key, _ in now if key not in content]:
            container.pop(key, None)
        for key, value in before:
            if container.get(key, _MISSING) is not value:
                container[key] = value
        if list(container) != list(content):  # a key was taken away and is now the last
            for key in content:
                container[key] = container.pop(key)
    elif isinstance(container, set):
        container &= content
        container |= content
    elif len(container) != len(content) or not all(map(operator.is_, list(container), content)):
        if isinstance(container, list):
            container[:] = content
        else:
            container.clear()
            container.extend(content)

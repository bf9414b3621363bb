"""Measuring leaves a model as it was: what its forward pass changes is restored."""

from __future__ import annotations

import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pathsgd.torch_private import set_version

_Container = dict | list | set | deque
_MISSING = object()


@dataclass(frozen=True)
class RandomState:
    """The states of the generators that a forward pass may use: torch's, Python's and numpy's."""

    state: tuple[Any, Any, Any]

    @classmethod
    def current(cls) -> RandomState:
        """The states now."""
        return cls((torch.get_rng_state(), random.getstate(), np.random.get_state()))  # noqa: NPY002

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """The states after this seed."""
        before = cls.current()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        after = cls.current()
        before._set()
        return after

    def _set(self) -> None:
        torch.set_rng_state(self.state[0])
        random.setstate(self.state[1])
        np.random.set_state(self.state[2])  # noqa: NPY002

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block, random numbers from this state; the present states return after it."""
        before = RandomState.current()
        self._set()
        try:
            yield
        finally:
            before._set()

    def is_used_in_python(self) -> bool:
        """Whether Python's or numpy's generator has been used since."""
        before: Any = self.state[2]
        now: Any = np.random.get_state()  # noqa: NPY002
        is_same = bool((now[1] == before[1]).all()) and now[2] == before[2]
        return random.getstate() != self.state[1] or not is_same


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Restore modules' attributes, their tensors and the random states, also if the block raises.

    Parameters need no copy: recording refuses every operation that would change one. Yields a
    function that says whether Python's or numpy's generator was used.
    """
    containers, tensors = _state(model)
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    now = RandomState.current()
    with torch.random.fork_rng(devices=devices), now.applied(), torch.no_grad():
        try:
            yield now.is_used_in_python
        finally:
            for tensor, version, before in tensors:
                _restore(tensor, version, before)
            for container, content in containers:
                _put_back(container, content)


def _state(
    model: nn.Module,
) -> tuple[list[tuple[Any, Any]], list[tuple[Tensor, int | None, Tensor]]]:
    """Every container reachable from the modules, with its content; every tensor in them."""
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
            version = None if item.is_inference() else item._version  # inference tensors have none
            tensors[id(item)] = (item, version, item.detach().clone())
    return containers, list(tensors.values())


def _restore(tensor: Tensor, version: int | None, before: Tensor) -> None:
    if version is None:
        with torch.inference_mode():  # the only mode in which such a tensor can be changed
            tensor.copy_(before)
    elif tensor._version != version:
        tensor.detach().copy_(before)
        set_version(tensor, version)


def _put_back(container: Any, content: Any) -> None:
    """Undo the changes in a container, and only those: another thread may be using it."""
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
        if list(container) != list(content):  # a key was removed and is now the last
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

"""Everything about a model that measuring must not change, by value and by identity."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that could change, by value and by identity."""
    state: dict[str, Any] = {"rng": torch.get_rng_state()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            state[f"{name}.{key}"] = (id(value), copy.deepcopy(_comparable(value)))
    for name, p in model.named_parameters():
        state[f"{name} itself"] = (
            id(p),
            p._version,
            p.requires_grad,
            p.detach().clone(),
            id(p.grad),
            _copied(p.grad),
        )
    for name, b in model.named_buffers():
        state[f"{name} itself"] = (id(b), b._version, b.detach().clone())
    return state


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, deque)):
        return [_comparable(entry) for entry in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else id(value)


def _copied(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        same_nans = isinstance(b, Tensor) and torch.equal(a.isnan(), b.isnan())
        return same_nans and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return bool(a == b)


def assert_unchanged(before: dict[str, Any], model: nn.Module) -> None:
    after = snapshot(model)
    assert list(before) == list(after)
    assert [key for key in before if not same(before[key], after[key])] == []

"""Are two recordings the same network?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathsgd.network.tape import Recording, Value, leaves


def alike(a: Recording, b: Recording) -> bool:
    """Whether two recordings have the same steps, between the same values, with the same constants."""
    if len(a.steps) != len(b.steps) or list(a.parameters) != list(b.parameters) or a.rows != b.rows:
        return False
    if len(a.inputs) != len(b.inputs):
        return False
    twin = dict(zip(a.inputs, b.inputs)) | dict(zip(a.parameters.values(), b.parameters.values()))
    if any(v.shape != w.shape for v, w in twin.items()):
        return False
    for s, t in zip(a.steps, b.steps):
        if s.operation != t.operation or s.where != t.where or len(s.outputs) != len(t.outputs):
            return False
        left, right = leaves((s.args, s.kwargs)), leaves((t.args, t.kwargs))
        if len(left) != len(right) or not all(_same(x, y, twin) for x, y in zip(left, right)):
            return False
        twin |= {v: w for v, w in zip(s.outputs, t.outputs) if v is not None and w is not None}
    measured = [[twin.get(v) for v in values] for values in (a.outputs, a.returned)]
    return measured == [list(b.outputs), list(b.returned)]


def _same(x: Any, y: Any, twin: dict[Value, Value]) -> bool:
    if isinstance(x, Value):
        return twin.get(x) is y
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return x is y or (isinstance(x, Tensor) and isinstance(y, Tensor) and _equal(x, y))
    return type(x) is type(y) and bool(x == y)


def _equal(x: Tensor, y: Tensor) -> bool:
    return (
        x.shape == y.shape
        and x.dtype == y.dtype
        and x.layout == y.layout
        and bool(torch.equal(x, y))
    )

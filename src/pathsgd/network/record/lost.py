"""What an operation without a rule gives: results of the right shapes, without paths, that say why they are lost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record import spelling
from pathsgd.network.record.origins import LEAVING
from pathsgd.network.record.path_tensor import Lost, PathTensor
from pathsgd.network.rules import Kind
from pathsgd.network.tape import leaves, map_leaves


def lost_results(
    refusal: UnsupportedOperation, func: Any, name: str, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Results of the right shapes that say why they are lost; raises where Python wants their values."""
    if name in LEAVING or name == "__setitem__":
        raise refusal
    device = next(
        a.device for a in leaves((args, kwargs)) if isinstance(a, PathTensor | nn.Parameter)
    )

    def lost(r: Any) -> Any:
        return (
            PathTensor(Lost(Kind.ACTIVATION, r.shape, r.dtype, refusal), device)
            if isinstance(r, Tensor)
            else r
        )

    if name == "autograd.grad":
        inputs = kwargs.get("inputs", args[1] if len(args) > 1 else ())
        return tuple(map(lost, [inputs] if isinstance(inputs, Tensor) else inputs))
    try:
        with torch._C.DisableTorchFunction():
            result = func(
                *map_leaves(lambda a: _meta(a), args), **map_leaves(lambda a: _meta(a), kwargs)
            )
    except (
        Exception
    ):  # whatever torch says of tensors without data: the user needs to know what is refused
        raise refusal from None
    if spelling.changes_its_operand(func, name, args, kwargs) and isinstance(args[0], PathTensor):
        args[0].value = lost(args[0]).value
        return args[0]
    if isinstance(result, tuple) and type(result) is not tuple:
        return type(result)(map(lost, result))
    return map_leaves(lost, result)


def _meta(a: Any) -> Any:
    return torch.empty(a.shape, dtype=a.dtype, device="meta") if isinstance(a, Tensor) else a

"""Processes that share their gradients must share their metric, or they drift apart in silence.

The metric depends on the parameters, which are equal everywhere, and on the shapes of the inputs, which need not be
(sequences of other lengths). So all processes measure for the shapes of the first one: one broadcast of 512 bytes a
measurement, and none where `example_inputs=` says the shapes. Nothing else is communicated.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

_ROOM = 64


def active_group() -> Any:
    """The process group of the DistributedDataParallel whose forward pass is running; None for none."""
    # Where torch has no such attribute any more, wrapped models are still known: `group_of`.
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    return None if active is None else active.process_group


def group_of(model: Any) -> Any:
    """The process group of a wrapped model; None for any other."""
    return model.process_group if isinstance(model, DistributedDataParallel) else None


def agreed(inputs: Sequence[Any], group: Any, device: torch.device) -> tuple[Any, ...]:
    """Inputs of the first process's shapes, in every process of the group."""
    leaves, structure = tree_flatten(list(inputs))
    own = _numbers(leaves)
    heard = torch.tensor(own, dtype=torch.int64, device=device)
    dist.broadcast(heard, dist.get_global_rank(group, 0), group)
    first = heard.cpu().tolist()
    if first == own:
        return tuple(inputs)
    if first[:2] != own[:2]:
        raise RuntimeError(
            "the processes' inputs differ in more than their sizes (their number, or lengths of sequences), so they "
            "cannot agree on one measurement; give the optimiser example_inputs="
        )
    sizes = iter(first[2:])
    resized = [_empty(a, [next(sizes) for _ in a.shape]) if isinstance(a, Tensor) else a for a in leaves]
    return tuple(tree_unflatten(resized, structure))


def _numbers(leaves: Sequence[Any]) -> list[int]:
    """What must be equal (dtypes, dimensions, lengths), then all sizes, in a list of fixed length."""
    tensors = [a for a in leaves if isinstance(a, Tensor)]
    kinds = [(str(a.dtype), a.dim(), a.cpu().tolist() if _is_structure(a) else None) for a in tensors]
    sizes = [size for a in tensors for size in a.shape]
    if len(sizes) > _ROOM - 2:
        raise RuntimeError(f"more than {_ROOM - 2} sizes of inputs to agree on; give the optimiser example_inputs=")
    return [len(tensors), zlib.crc32(repr(kinds).encode()), *sizes, *([0] * (_ROOM - 2 - len(sizes)))]


def _is_structure(a: Tensor) -> bool:
    return a.dim() == 1 and not a.is_floating_point()


def _empty(a: Tensor, shape: Sequence[int]) -> Tensor:
    return a if list(a.shape) == list(shape) else torch.zeros((), dtype=a.dtype, device=a.device).expand(shape)

"""Processes that share their gradients must share their metric, or they diverge silently.

The metric depends on the parameters, which are equal everywhere, and on the inputs of the model,
which may differ: sequence lengths, masks, random numbers. So all processes measure for the inputs
of the first. At each measurement it puts their shapes, and the values of structural ones, into the
store of the process group, where the others read them. This needs no collective operation and no
synchronisation of a device. With `example_inputs=` nothing is exchanged.
"""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten

from pathsgd.distributed.spread import is_sharded
from pathsgd.network.record.inputs import Call, map_tensors, numbered_tensors
from pathsgd.network.record.preserve import RandomState
from pathsgd.torch_private import active_ddp, default_store

_KEPT = 8
"""Messages kept in the store; a reader exchanges gradients before it reads the next message."""
_PLAIN = (bool, int, float, str, type(None))
_sent: Counter[str] = Counter()
"""How many messages there were for each group of processes; the same in all of them."""


@dataclass(frozen=True)
class Peers:
    """Processes that train one model together."""

    name: str
    first: int
    """The rank of the one whose inputs count."""


def peers_of(model: nn.Module) -> Peers | None:
    """Who trains a wrapped or sharded model; None for any other."""
    if isinstance(model, DistributedDataParallel):
        return _of_group(model.process_group)
    for p in model.parameters():
        if is_sharded(p):
            ranks = p.device_mesh.mesh.flatten().tolist()  # type: ignore[attr-defined]
            return Peers(f"mesh {ranks}", ranks[0])
    return None


def active_peers() -> Peers | None:
    """The processes of the DistributedDataParallel forward pass that is running; else None."""
    active = active_ddp()
    return None if active is None else _of_group(active.process_group)


def _of_group(group: Any) -> Peers:
    return Peers(f"group {dist.get_process_group_ranks(group)}", dist.get_global_rank(group, 0))


def is_first(peers: Peers) -> bool:
    """Whether what this process saw counts."""
    return dist.get_rank() == peers.first


def agreed(
    call: Call, dice: RandomState | None, structural: frozenset[int], peers: Peers
) -> tuple[Call, RandomState | None]:
    """The inputs of the first process, in every process. structural: indices of structural ones."""
    number, store = _sent[peers.name], _store()
    _sent[peers.name] += 1
    key = f"pathsgd/{peers.name}/"
    if is_first(peers):
        store.set(f"{key}{number}", _message(call, dice, structural))
        if number >= _KEPT:
            store.delete_key(f"{key}{number - _KEPT}")
        return call, dice
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # of torch's own class for the structure of arguments
        told, structure, dice = pickle.loads(
            store.get(f"{key}{number}")
        )  # from a process of the same run
    return _rebuilt(call, told, structure), dice


def _store() -> Any:
    store = default_store()
    if store is None:
        raise RuntimeError(
            "this version of torch does not say where its processes meet, so they cannot agree "
            "on what to measure; give the optimiser example_inputs="
        )
    return store


@dataclass(frozen=True)
class _Described:
    """A tensor without its values, unless they are structure."""

    shape: torch.Size
    dtype: torch.dtype
    values: Tensor | None

    def like(self, own: Tensor | None, device: torch.device) -> Tensor:
        """A tensor of this description: this process's own where it is one."""
        if self.values is not None:
            return self.values.to(device)
        if own is not None and own.shape == self.shape and own.dtype == self.dtype:
            return own
        return torch.zeros((), dtype=self.dtype, device=device).expand(self.shape)


def _message(call: Call, dice: RandomState | None, structural: frozenset[int]) -> bytes:
    """The call with descriptions in place of tensors; of other objects only their tensors."""
    numbers = itertools.count()

    def described(a: Tensor) -> _Described:
        values = a.detach().cpu().clone() if next(numbers) in structural else None
        return _Described(a.shape, a.dtype, values)

    leaves, structure = tree_flatten((call.args, call.kwargs))
    told = [
        leaf
        if isinstance(leaf, _PLAIN)
        else [described(a) for a in numbered_tensors(Call((leaf,)))]
        for leaf in leaves
    ]
    return pickle.dumps((told, structure, dice))


def _rebuilt(own: Call, told: list[Any], structure: Any) -> Call:
    """The first process's call, with this one's objects."""
    leaves, own_structure = tree_flatten((own.args, own.kwargs))
    device = next((a.device for a in numbered_tensors(own)), torch.device("cpu"))
    mine = leaves if structure == own_structure else [None] * len(told)
    args, kwargs = tree_unflatten(
        [_leaf(one, leaf, device) for one, leaf in zip(told, mine)], structure
    )
    return Call(args, kwargs)


def _leaf(told: Any, own: Any, device: torch.device) -> Any:
    if isinstance(told, _PLAIN):
        return told
    held = [] if own is None else numbered_tensors(Call((own,)))
    if len(told) == 1 and (own is None or isinstance(own, Tensor)):
        return told[0].like(own, device)
    if own is None or isinstance(own, _PLAIN) or len(held) != len(told):
        raise RuntimeError(
            "the processes' inputs differ in more than shapes and values: in the objects among "
            "their arguments. So they cannot agree on one measurement; give the optimiser "
            "example_inputs="
        )
    described = iter(told)
    return map_tensors(lambda a: next(described).like(a, device), Call((own,))).args[0]

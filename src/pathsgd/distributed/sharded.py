"""Models whose parameters are sharded over processes by fully_shard (FSDP2, DTensor parameters).

Each process holds a part of every parameter. Recording needs only the whole shapes, no values. To
measure, parameters are gathered and all processes compute the same. A step gathers them layer by
layer (distributed/gathered.py); a quantity that a user asks for gathers them all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.spread import is_sharded, whole


def gathered(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every parameter whole, in every process; those that are whole already are themselves."""
    return {name: _gathered(p) if is_sharded(p) else p for name, p in parameters.items()}


def _gathered(p: Tensor) -> Tensor:
    found = whole(p)
    # Where no gradient is asked for, it is still to be seen which parameters are frozen.
    return found if found.requires_grad else found.requires_grad_(p.requires_grad)


def whole_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, each of them whole."""
    return gathered(dict(model.named_parameters()))


def refuse_sharded(
    model: nn.Module, function: str, advice: str = "call it before the model is sharded"
) -> None:
    """Refuse to write to parameters or gradients of which no process holds more than a part."""
    if any(is_sharded(p) for p in model.parameters()):
        raise TypeError(
            f"{function} needs whole parameters, and the model is sharded (DTensor parameters); "
            f"{advice}"
        )


def reshard(model: nn.Module) -> None:
    """Free parameters that a forward pass gathered: the optimiser moves the parts."""
    for module in model.modules():
        if _is_fsdp(module):
            module.reshard()  # type: ignore[operator]


def _is_fsdp(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def put_stand_ins(model: nn.Module) -> None:
    """Replace parts by parameters of the whole shapes without memory, and remove FSDP's hooks.

    This does not restore anything: the caller that records a model restores it (preserve.py).
    """
    if not any(is_sharded(p) for p in model.parameters()):
        return
    stand_ins: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if _is_torch_distributed(hook)]:
                del hooks[key]
        for name, p in list(module._parameters.items()):
            if p is not None and is_sharded(p):
                if id(p) not in stand_ins:
                    empty = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
                    stand_ins[id(p)] = nn.Parameter(empty, requires_grad=p.requires_grad)
                setattr(
                    module, name, stand_ins[id(p)]
                )  # not into _parameters: an RNN keeps a list of its own


def _is_torch_distributed(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed")

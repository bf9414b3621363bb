"""The module whose forward pass is measured, behind what torch wraps around it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def original(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel and DataParallel; FSDP1 is refused by name."""
    while True:
        kinds = {kind.__name__ for kind in type(model).__mro__}
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif "OptimizedModule" in kinds:
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    wrapped = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if "FullyShardedDataParallel" in wrapped:
        raise TypeError(
            "FullyShardedDataParallel lays the parameters of many layers end to end, so their shapes are lost; shard "
            "the model with torch.distributed.fsdp.fully_shard instead"
        )
    return model


def watched(model: nn.Module) -> nn.Module:
    """The module whose calls show the inputs: the one that is measured, or torch.compile's shell around it.

    A hook of the shell runs outside compiled code: it breaks no graph and causes no recompilation.
    """
    while isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    return model


def eagerly() -> AbstractContextManager[Any]:
    """While active, compiled code runs as it was written: a recording needs to see its operations."""
    if (
        "torch._dynamo" not in sys.modules
    ):  # nothing has been compiled, and to load the compiler takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]

"""The module whose forward pass is measured, behind what torch wraps around it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def original(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel and DataParallel; sharded models are refused by name."""
    while True:
        kinds = {kind.__name__ for kind in type(model).__mro__}
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif "OptimizedModule" in kinds:
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    sharded = kinds & {"FullyShardedDataParallel", "FSDPModule"}
    if sharded or any(is_distributed(p) for p in model.parameters()):
        name = next(iter(sharded), "DTensor parameters")
        raise TypeError(
            f"the model is sharded ({name}): no process holds its weights, so no process can measure its paths; "
            "use DistributedDataParallel"
        )
    return model


def watched(model: nn.Module) -> nn.Module:
    """The module whose calls show the inputs: the one that is measured, or torch.compile's shell around it.

    A hook of the shell runs outside compiled code: it breaks no graph and causes no recompilation.
    """
    while isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    return model


def is_distributed(p: Tensor) -> bool:
    """Whether a tensor is spread over processes."""
    return hasattr(p, "full_tensor") and hasattr(p, "placements")


def eagerly() -> AbstractContextManager[Any]:
    """While active, compiled code runs as it was written: a recording needs to see its operations."""
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled, and to load the compiler takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]

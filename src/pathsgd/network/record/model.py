"""Which model is measured, and the checks before it is recorded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pathsgd.distributed.spread import own_part
from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.inputs import Call, numbered_tensors

# ---- wrapped models ------------------------------------------------------------------------------


def original(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DistributedDataParallel and DataParallel."""
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
            "FullyShardedDataParallel flattens the parameters of many layers, so their shapes are "
            "lost; shard the model with torch.distributed.fsdp.fully_shard instead"
        )
    return model


def watched(model: nn.Module) -> nn.Module:
    """The module whose calls show the inputs: the measured one, or torch.compile's wrapper.

    A hook of the wrapper runs outside compiled code: it breaks no graph and causes no
    recompilation.
    """
    while isinstance(model, (DistributedDataParallel, DataParallel)):
        model = model.module
    return model


def eagerly() -> AbstractContextManager[Any]:
    """While active, compiled code runs eagerly, so that a recording sees its operations."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; the import takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


# ---- checks --------------------------------------------------------------------------------------

NO_FORWARD = (
    "has no forward; let it be the method that is trained through, "
    "model.forward = model.get_action_and_value"
)


def check_model(model: Any) -> None:
    """Raise TypeError for what is no module."""
    if not isinstance(model, nn.Module):
        is_class = isinstance(model, type) and issubclass(model, nn.Module)
        what = f"the class {model.__name__} (call it to make one)" if is_class else None
        raise TypeError(f"expected a torch.nn.Module, got {what or type(model).__name__}")


def has_forward(model: nn.Module) -> bool:
    """Whether a module can be called; an agent may have methods of its own only."""
    return getattr(model.forward, "__func__", None) is not nn.Module.forward


def validate(model: nn.Module, call: Call) -> None:
    """Raise TypeError, ValueError or UnsupportedOperation, naming what is wrong."""
    check_model(model)
    if not has_forward(model):
        raise TypeError(f"{type(model).__name__} {NO_FORWARD}")
    for name, module in model.named_modules():
        _check_module(name, module)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters: there are no paths to measure")
    for name, p in parameters.items():
        _check_parameter(name, p)
    dtypes = {p.dtype: name for name, p in parameters.items()}
    if len(dtypes) > 1:
        examples = ", ".join(f"'{name}' is {dtype}" for dtype, name in dtypes.items())
        advice = "convert the model to one, e.g. model.float()"
        raise TypeError(f"the parameters mix dtypes ({examples}); {advice}")
    _check_inputs(numbered_tensors(call), next(iter(dtypes)))


def _check_module(name: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if kind in ("_SpectralNorm", "_Orthogonal"):
        layer = name.partition(".parametrizations")[0]
        raise UnsupportedOperation(
            kind.strip("_"),
            f"module '{layer}'",
            "the parametrization divides a weight by a norm that no rescaling of units keeps; "
            "remove it (torch.nn.utils.parametrize.remove_parametrizations), or bound growth with "
            "optim.bound_growth_",
        )
    is_script = isinstance(module, torch.jit.ScriptModule)
    if is_script or hasattr(module, "_orig_mod"):
        raise UnsupportedOperation(
            kind,
            f"module '{name}'" if name else "the model itself",
            f"{'scripted or traced' if is_script else 'compiled'} code hides its operations; "
            "measure the plain module (of torch.compile: model._orig_mod)",
        )


def _check_parameter(name: str, p: Tensor) -> None:
    if isinstance(p, nn.parameter.UninitializedParameter):
        advice = "run the model once first"
        raise ValueError(f"parameter '{name}' is lazy and not initialised; {advice}")
    if not p.is_floating_point():
        needed = "path quantities need real floating-point parameters"
        raise TypeError(f"parameter '{name}' is {p.dtype}; {needed}")
    own = own_part(p.detach())
    # One number decides in most cases; a sum may overflow although all entries are finite.
    if not bool(own.sum().isfinite()) and not bool(own.isfinite().all()):
        what = "its paths have no finite weight"
        raise ValueError(f"parameter '{name}' has NaN or infinite entries; {what}")


def _check_inputs(found: Sequence[Tensor], dtype: torch.dtype) -> None:
    if not found:
        raise ValueError("no example input: pass at least one tensor of the shape the model takes")
    for a in found:
        if a.is_complex():
            raise TypeError("an example input is complex; path quantities need real inputs")
        if a.is_floating_point() and a.dtype != dtype:
            kinds = f"an example input is {a.dtype} but the parameters are {dtype}"
            raise TypeError(f"{kinds}; convert one")
        if a.numel() == 0:
            what = f"an example input is empty (shape {tuple(a.shape)})"
            raise ValueError(f"{what}; give it at least one step and example")

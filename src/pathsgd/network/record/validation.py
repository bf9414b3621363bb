"""What no measurement can make sense of, refused before anything runs, each with what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.distributed.spread import own_part
from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record.inputs import Call, numbered_tensors


def check_model(model: Any) -> None:
    """Raise TypeError for what is no model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {_named(model)}")


def check_forward(model: nn.Module) -> None:
    """Raise TypeError for a module that cannot be called: an agent with methods of its own, say."""
    if not has_forward(model):
        raise TypeError(f"{type(model).__name__} {NO_FORWARD}")


def has_forward(model: nn.Module) -> bool:
    """Whether a module can be called."""
    return getattr(model.forward, "__func__", None) is not nn.Module.forward


NO_FORWARD = "has no forward; let it be the method that is trained through, model.forward = model.get_action_and_value"


def _named(value: Any) -> str:
    is_module = isinstance(value, type) and issubclass(value, nn.Module)
    return (
        f"the class {value.__name__} (call it to make one)" if is_module else type(value).__name__
    )


def validate(model: nn.Module, call: Call) -> None:
    """Raise TypeError, ValueError or UnsupportedOperation, naming what is wrong."""
    check_model(model)
    check_forward(model)
    _check_modules(model)
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters: there are no paths to measure")
    for name, p in parameters.items():
        _check_parameter(name, p)
    dtypes = {p.dtype: name for name, p in parameters.items()}
    if len(dtypes) > 1:
        examples = ", ".join(f"'{name}' is {dtype}" for dtype, name in dtypes.items())
        raise TypeError(
            f"the parameters mix dtypes ({examples}); convert the model to one, e.g. model.float()"
        )
    _check_inputs(numbered_tensors(call), next(iter(dtypes)))


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ in ("_SpectralNorm", "_Orthogonal"):
            layer = name.partition(".parametrizations")[0]
            raise UnsupportedOperation(
                type(module).__name__.strip("_"), f"module '{layer}'",
                "the parametrization divides a weight by a norm that no rescaling of units keeps; remove it "
                "(torch.nn.utils.parametrize.remove_parametrizations), or bound growth with optim.bound_growth_",
            )  # fmt: skip
        if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
            kind = (
                "scripted or traced" if isinstance(module, torch.jit.ScriptModule) else "compiled"
            )
            where = f"module '{name}'" if name else "the model itself"
            raise UnsupportedOperation(
                type(module).__name__,
                where,
                f"{kind} code hides its operations; measure the plain module (of torch.compile: model._orig_mod)",
            )


def _check_parameter(name: str, p: Tensor) -> None:
    if isinstance(p, nn.parameter.UninitializedParameter):
        raise ValueError(
            f"parameter '{name}' is lazy and not initialised; run the model once first"
        )
    if not p.is_floating_point():
        raise TypeError(
            f"parameter '{name}' is {p.dtype}; path quantities need real floating-point parameters"
        )
    own = own_part(p.detach())
    # A sum tells at the price of one look at the numbers; where it overflows it tells nothing.
    if not bool(own.sum().isfinite()) and not bool(own.isfinite().all()):
        raise ValueError(
            f"parameter '{name}' has NaN or infinite entries; its paths have no finite weight"
        )


def _check_inputs(found: Sequence[Tensor], dtype: torch.dtype) -> None:
    if not found:
        raise ValueError("no example input: pass at least one tensor of the shape the model takes")
    for a in found:
        if a.is_complex():
            raise TypeError("an example input is complex; path quantities need real inputs")
        if a.is_floating_point() and a.dtype != dtype:
            raise TypeError(
                f"an example input is {a.dtype} but the parameters are {dtype}; convert one"
            )
        if a.numel() == 0:
            raise ValueError(
                f"an example input is empty (shape {tuple(a.shape)}); give it at least one step and example"
            )

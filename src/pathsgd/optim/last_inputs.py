"""What a model was last run on: shapes, and none of the data."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pathsgd.metric.geometry import shape_key
from pathsgd.optim import ranks
from pathsgd.recording.recorder import is_recording
from pathsgd.recording.unwrap import original, watched


class LastInputs:
    """A forward pre-hook that remembers the shapes of the model's last inputs; or an example that stands for them all.

    It belongs to an owner (an optimiser) and takes itself off the model at the first forward pass after the owner is
    gone, or in a copy of the model that was made without the owner.
    """

    def __init__(self, example: Any = None) -> None:
        self._owner: weakref.ref[Any] | None = None
        self._key: tuple[Any, ...] | None = None
        self._is_example = example is not None
        self._inputs: tuple[Any, ...] | None = as_inputs(example) if self._is_example else None
        self._problem = "it has seen no forward pass of its model"
        self._group: Any = None
        """The processes that share their gradients with this one."""

    def belong_to(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)

    def release(self) -> None:
        self._owner = None

    def watch(self, model: nn.Module) -> None:
        """Look at what this model is run on, unless an example says it."""
        if self._is_example:
            return
        self._group = ranks.group_of(model)
        watched(model).register_forward_pre_hook(self, with_kwargs=True)

    @torch.compiler.disable
    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._owner is None or self._owner() is None:
            _remove_hook(model, self)
            return
        if is_recording():
            return  # a measurement under way, with stand-ins of its own for the inputs
        if not torch.is_grad_enabled() and self._inputs is not None:
            return  # an evaluation: the gradients of the next step do not come from here
        self._group = self._group or ranks.active_group()
        if kwargs:
            bound = inspect.signature(original(model).forward).bind(*args, **kwargs)
            if bound.kwargs:
                # Told at the next step: the forward pass itself must not fail because somebody watches.
                self._key = self._inputs = None
                self._problem = f"its model takes keyword-only inputs {sorted(bound.kwargs)}, which are not recorded"
                return
            args = bound.args
        key = shape_key(args)
        if key != self._key:
            self._key, self._inputs = key, without_data(args)

    def get(self) -> tuple[Any, ...]:
        if self._inputs is None:
            raise RuntimeError(
                f"the optimiser does not know the shape of its model's inputs: {self._problem}; "
                "call the model itself (not a part of it) before step(), or give example_inputs="
            )
        return self._inputs

    def get_agreed(self, device: torch.device) -> tuple[Any, ...]:
        """The same in every process of a data-parallel model: the inputs of the first."""
        inputs = self.get()
        return inputs if self._group is None else ranks.agreed(inputs, self._group, device)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_owner": None, "_group": None}  # a copy of the owner makes the copy its own


def as_inputs(example: Any) -> tuple[Any, ...]:
    """Example inputs as the user gave them, one or several, as arguments without data."""
    # Not isinstance: a packed sequence is one input, and a tuple too.
    return without_data(tuple(example) if type(example) in (tuple, list) else (example,))


def without_data(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same shapes and dtypes, each from one zero; integer vectors (lengths) are structure and kept."""

    def empty(a: Any) -> Any:
        if not isinstance(a, Tensor) or (a.dim() == 1 and not a.is_floating_point()):
            return a
        return torch.zeros((), dtype=a.dtype, device=a.device).expand(a.shape)

    return tree_map(empty, args)


def _remove_hook(model: nn.Module, hook: LastInputs) -> None:
    for key in [k for k, h in model._forward_pre_hooks.items() if h is hook]:
        del model._forward_pre_hooks[key]
        model._forward_pre_hooks_with_kwargs.pop(key, None)

"""The inputs of a model's last forward pass: shapes, and data that may be structure.

Booleans and integers are kept as they are (masks, lengths, edges). Floats are kept until a
recording has shown that they are not structure; then only their shapes are kept.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.metric.geometry import Geometry
from pathsgd.metric.structures import Structures
from pathsgd.network.record.inputs import Call, call_of, is_sparse, map_tensors, numbered_tensors
from pathsgd.network.record.model import NO_FORWARD, has_forward, original, watched
from pathsgd.network.record.preserve import RandomState
from pathsgd.network.record.recorder import is_recording
from pathsgd.optim import ranks


class LastInputs:
    """A forward pre-hook that remembers the model's last inputs, or a fixed example instead.

    It belongs to an owner (an optimiser). It removes itself at the first forward pass after the
    owner is gone, and from a copy of the model that was made without the owner.
    """

    def __init__(self, model: nn.Module, example: Any = None) -> None:
        self._owner: weakref.ref[Any] | None = None
        self._is_example = example is not None
        self._call: Call | None = as_call(model, example) if self._is_example else None
        self._problem = (
            "it has seen no forward pass of its model"
            if has_forward(model)
            else f"the model {NO_FORWARD}"
        )
        self._peers: ranks.Peers | None = None
        """The processes that share their gradients with this one."""
        self.dice: RandomState | None = None
        """The random generators before the last forward pass, where they are watched."""
        self.watches_dice = False
        self.structural: frozenset[int] | None = None
        """Numbers of the inputs whose values are structure; None while it is not known."""

    def belong_to(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)

    def release(self) -> None:
        self._owner = None

    def watch(self, model: nn.Module) -> None:
        """Look at what this model is run on, unless an example says it."""
        if self._is_example:
            return
        self._peers = ranks.peers_of(model)
        # Before all other hooks: they change the inputs again when the model is recorded.
        watched(model).register_forward_pre_hook(self, with_kwargs=True, prepend=True)

    @torch._disable_dynamo
    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._owner is None or self._owner() is None:
            _remove_hook(model, self)
            return
        if is_recording():
            return  # a measurement under way, with stand-ins of its own for the inputs
        if not torch.is_grad_enabled() and self._call is not None:
            return  # an evaluation: the gradients of the next step do not come from here
        self._peers = self._peers or ranks.active_peers()
        self.dice = RandomState.current() if self.watches_dice else None
        if kwargs:
            bound = inspect.signature(original(model).forward).bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        if kwargs or not self._is_held(args):
            self._call = self._without_data(Call(args, kwargs))

    def _is_held(self, args: tuple[Any, ...]) -> bool:
        """Whether the kept inputs stand for these: floats of the same shapes, and no structure."""
        if self.structural or self.structural is None or self._call is None or self._call.kwargs:
            return False
        held = self._call.args
        return len(held) == len(args) and all(
            type(a) is Tensor
            and type(b) is Tensor
            and a.is_floating_point()
            and a.shape == b.shape
            and a.dtype is b.dtype
            and a.device == b.device
            and a.layout is b.layout is torch.strided
            for a, b in zip(args, held)
        )

    def _without_data(self, call: Call) -> Call:
        """Numbers that are not structure without their values, each from one zero."""
        if self.structural is None:
            return call
        count = iter(range(len(numbered_tensors(call))))

        def empty(a: Tensor) -> Tensor:
            if next(count) in self.structural or not a.is_floating_point() or is_sparse(a):  # type: ignore[operator]
                return a
            return torch.zeros((), dtype=a.dtype, device=a.device).expand(a.shape)

        return map_tensors(empty, call)

    def learn_from(self, structures: Structures) -> None:
        """Hold from now on what its recordings have shown to be needed."""
        known, self.structural, self.watches_dice = (
            self.structural,
            structures.structural,
            structures.throws_dice,
        )
        if known != self.structural and not self._is_example and self._call is not None:
            self._call = self._without_data(self._call)

    def get(self) -> Call:
        """The arguments that the metric is measured for."""
        if self._call is None:
            raise RuntimeError(
                f"the optimiser does not know the shape of its model's inputs: {self._problem}; "
                "call the model itself (not a part of it) before step(), or give example_inputs="
            )
        return self._call

    def get_agreed(self, geometry: Geometry) -> tuple[Call, RandomState | None]:
        """`get()` and the random state of the first process, in every process that trains."""
        call = self.get()
        if self._peers is None:
            return call, self.dice
        if ranks.is_first(
            self._peers
        ):  # which values are structure shows when the model is recorded
            geometry.structure(call, self.dice)
            self.learn_from(geometry.structures)
            call = self.get()
        return ranks.agreed(call, self.dice, self.structural or frozenset(), self._peers)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the owner registers its own; a pickle keeps only data that may be structure.
        bare = LastInputs.__new__(LastInputs)
        bare.structural = self.structural or frozenset()
        call = None if self._call is None else bare._without_data(self._call)
        return {**vars(self), "_owner": None, "_peers": None, "dice": None, "_call": call}


def as_call(model: nn.Module, example: Any) -> Call:
    """Example inputs as the user gave them, one or several, or a dictionary of them by name."""
    # Not isinstance: a packed sequence is one input, and a tuple too.
    return call_of(model, tuple(example) if type(example) in (tuple, list) else (example,))


def _remove_hook(model: nn.Module, hook: LastInputs) -> None:
    for key in [k for k, h in model._forward_pre_hooks.items() if h is hook]:
        del model._forward_pre_hooks[key]
        model._forward_pre_hooks_with_kwargs.pop(key, None)

"""The role of each tensor of a forward pass: an operand that carries paths, structure, or noise.

Parameters and what is computed from them and from floating-point inputs carry paths. An integer or
boolean input, and what is computed from it, is looked up (words) or structure (a mask, lengths).
Random numbers are noise: added they count as 0, multiplied as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pathsgd.network.record.calls import RANDOM, NoRule
from pathsgd.network.record.inputs import is_sparse
from pathsgd.network.record.path_tensor import (
    CONSTANT,
    Origin,
    PathTensor,
    is_lost,
    joined,
)
from pathsgd.network.rules import Kind, Rule
from pathsgd.network.rules.pointwise import Add, Divide
from pathsgd.network.tape import Recording, Value, leaves, map_leaves

Call = tuple[Any, tuple[Any, ...]]
"""A function of torch and its arguments."""


class Operands:
    """The tensors of one recording."""

    def __init__(self, model: nn.Module, recording: Recording, where: Callable[[], str]) -> None:
        self.recording, self._where = recording, where
        self.parameters = {id(p): name for name, p in model.named_parameters()}
        self.buffers = {id(b) for b in model.buffers()}
        # Tensors are held beside their ids, so that no other tensor gets the same id.
        self._written: dict[int, tuple[Tensor, Value]] = {}
        self._origins: dict[int, tuple[Tensor, Origin]] = {}

    # ---- tensors that enter ----------------------------------------------------------------------

    def input(self, tensor: Tensor, number: int) -> Tensor:
        """What the model gets for an input: a stand-in, or the integers or sparse matrix."""
        origin = Origin(frozenset([number]))
        if tensor.is_floating_point() and not is_sparse(tensor):
            return self.stand_in(tensor, tensor.dtype, origin)
        tensor = tensor.detach()  # an object for each input, even if one tensor is given twice
        self.note(tensor, origin)
        return tensor

    def restarted(self, tensor: Tensor) -> Tensor:
        """What a measured submodule gets for a lost value: an input, where new paths start."""
        if not is_lost(tensor):
            return tensor
        value = Value(Kind.INPUT, tensor.shape, tensor.dtype)
        self.recording.inputs.append(value)
        return PathTensor(value, tensor.device)

    def stand_in(self, tensor: Tensor, dtype: torch.dtype, origin: Origin) -> PathTensor:
        """An input with these values."""
        value = Value(Kind.INPUT, tensor.shape, dtype)
        self.recording.inputs.append(value)
        stand_in = PathTensor(value, tensor.device)
        stand_in.known, stand_in.origin = tensor, origin
        return stand_in

    def write(self, target: Tensor, value: Value) -> None:
        """Paths were written into a tensor: x[i] = y."""
        if isinstance(target, PathTensor):
            target.value = value
        else:
            self._written[id(target)] = (target, value)

    # ---- what a tensor is ------------------------------------------------------------------------

    def carries_paths(self, a: Any) -> bool:
        """Whether this is a parameter, a stand-in, or a tensor that paths were written into."""
        if isinstance(a, (PathTensor, nn.Parameter)):
            return True
        return id(a) in self.parameters or id(a) in self._written

    def value_of(self, a: Any) -> Any:
        """The recorded value of a tensor, or the object itself if it carries no paths."""
        if isinstance(a, PathTensor):
            return a.value
        if not isinstance(a, Tensor):
            return a
        if id(a) in self._written:
            return self._written[id(a)][1]
        name = self.parameters.get(id(a))
        if name is not None:
            return self.recording.parameters.setdefault(name, Value(Kind.WEIGHT, a.shape, a.dtype))
        if isinstance(a, nn.Parameter):
            raise ValueError(
                f"a Parameter of shape {tuple(a.shape)} is used in {self._where()} but not "
                "registered in the model; assign it to a module attribute or use "
                "torch.nn.ParameterList"
            )
        # Buffers are read at every evaluation; other constants keep the values they have now.
        return a if id(a) in self.buffers else a.clone()

    def have_known_values(self, operands: Sequence[Tensor]) -> bool:
        """Whether all of these are computed from inputs and constants alone."""
        return all(
            isinstance(a, PathTensor) and a.known is not None
            for a in operands
            if self.carries_paths(a)
        )

    def is_weight(self, a: Any) -> bool:
        """Whether this is computed from parameters alone."""
        return self.carries_paths(a) and self.value_of(a).kind is Kind.WEIGHT

    def is_view_of_written(self, a: Tensor) -> bool:
        """Whether this shares the memory of a tensor that paths were written into."""
        if not self._written:
            return False
        storage = a.untyped_storage().data_ptr()
        return any(t.untyped_storage().data_ptr() == storage for t, _ in self._written.values())

    # ---- origins ---------------------------------------------------------------------------------

    def note(self, tensor: Tensor, origin: Origin) -> None:
        """Remember the origin of a tensor that carries no paths."""
        if origin != CONSTANT:
            self._origins[id(tensor)] = (tensor, origin)

    def origin(self, tensor: Any) -> Origin:
        """The origin of a tensor."""
        if isinstance(tensor, PathTensor):
            return tensor.origin
        return self._origins.get(id(tensor), (tensor, CONSTANT))[1]

    def joined_origin(self, tensors: Sequence[Tensor], name: str) -> Origin:
        """The origin of what an operation makes of these."""
        return joined(map(self.origin, tensors), random=name in RANDOM)

    def use(self, origin: Origin) -> None:
        """Values of this origin are structure: they decide what is recorded."""
        self.recording.structural |= origin.inputs

    # ---- roles in a call -------------------------------------------------------------------------

    def equivalent(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Another call with the same paths, for lookups and for choices by random numbers.

        An embedding of constants (positions) is an index into its rows; a weight indexed by an
        input is an embedding. All entries among which random numbers choose have paths.
        """
        if name == "embedding" and len(args) >= 2 and self.carries_paths(args[1]):
            index, weight = args[:2]
            renormalises = kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None
            is_constant = not isinstance(index, PathTensor) and not self.origin(index).inputs
            if is_constant and not renormalises:
                return Tensor.__getitem__, (weight, index)
        if name in ("__getitem__", "index_select") and not kwargs and self.is_weight(args[0]):
            weight, index = args[0], args[-1]
            is_index = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
            of_rows = args[1:-1] in ((), (0,)) and weight.dim() == 2
            if is_index and of_rows and self.origin(index).inputs:
                return torch.nn.functional.embedding, (index, weight)
        if name == "masked_fill" and self.origin(args[1]).random:
            return Tensor.clone, (args[0],)
        if name == "where" and len(args) == 3 and self.origin(args[0]).random:
            return torch.add, (args[1], args[2])
        return None

    def settled(self, rule: Rule, name: str, args: Any, kwargs: Any) -> Any:
        """The arguments with every tensor in its role.

        A tensor computed from inputs and multiplied with values of units is a constant (a mask).
        Booleans and integers are structure, unless they are looked up; other numbers are inputs.
        """

        def settle(a: Any) -> Any:
            if not isinstance(a, Tensor) or self.carries_paths(a):
                return a
            origin, is_float = self.origin(a), a.is_floating_point()
            if origin.random and (is_float or (a.dtype is torch.bool and rule.multiplies)):
                return torch.zeros_like(a) if isinstance(rule, Add) else torch.ones_like(a)
            if not origin.inputs or name in ("embedding", "embedding_bag"):
                return a
            is_zero = isinstance(rule, Add) and not bool(a.any())  # a masked state of zeros
            if is_float and not isinstance(rule, Divide) and not is_zero:
                return self.stand_in(a, a.dtype, origin)
            self.use(origin)
            return a

        args, kwargs = map_leaves(settle, (args, kwargs))
        constants = self._multiplied_inputs(rule, args, kwargs)
        if not constants:
            return args, kwargs
        return map_leaves(lambda a: a.known if id(a) in constants else a, (args, kwargs))

    def _multiplied_inputs(self, rule: Rule, args: Any, kwargs: Any) -> set[int]:
        """Ids of the tensors computed from inputs that are multiplied with values of units."""
        tensors = {
            a.value: a
            for a in (leaves((args, kwargs)) if rule.multiplies else ())
            if isinstance(a, PathTensor) and a.known is not None
        }
        if not tensors:
            return set()
        values, named = map_leaves(self.value_of, (args, kwargs))
        try:
            products = rule.products(*rule.rewrite(*values), **named)
        except TypeError:
            return set()  # this form of call is refused later, with its name
        constants: set[int] = set()
        for product in products:
            factors = [f for f in product if any(v.kind is not Kind.WEIGHT for v in f)]
            known = [v for factor in factors for v in factor if v in tensors]
            if len(factors) < 2 or not known:
                continue
            if len(known) == sum(map(len, factors)):
                advice = "it multiplies inputs with inputs and weights; do it in two steps"
                raise NoRule(rule.name, advice)
            for value in known:
                self.use(tensors[value].origin)
                constants.add(id(tensors[value]))
        return constants

    def refusal_of_writing(self, target: Tensor) -> str | None:
        """Why an in-place change of a tensor cannot be followed; None if it can."""
        if isinstance(target, PathTensor):
            if target.value in self.recording.inputs and target.value.kind is Kind.INPUT:
                return "it changes the model's input in place; use the out-of-place form"
            if target.borrowed:
                what = "a parameter or a collecting tensor through a view"
                return f"it changes {what}; use the out-of-place form"
            if sum(tensor() is not None for tensor in target.sharing.values()) > 1:
                what = "a tensor in place while a view of it is in use"
                return f"it changes {what}; use the out-of-place form"
        elif id(target) in self.parameters:
            return "parameters must not be changed in the forward pass"
        elif id(target) in self.buffers:
            what = "a buffer, which would outlive the forward pass"
            return f"it writes paths into {what}; use a tensor of its own"
        elif target._is_view():
            what = "a view of a plain tensor"
            return f"it writes paths into {what}; collect results with torch.stack or with x[i] = y"
        return None

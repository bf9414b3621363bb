"""Watches a forward pass and writes down every operation through which paths flow.

A `TorchFunctionMode` sees each torch function the model calls, methods and operators included. Tensors that carry
paths are `PathTensor`s: they have shape, dtype and device, and no data. An operation that meets one of them or a
parameter becomes a `Step` with its rule. What an operation without a rule makes is lost: it is never passed through,
and it is an error only if a measured output depends on it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, resolve_name

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record import spelling
from pathsgd.network.record.calls import NoRule, check_call, results_of
from pathsgd.network.record.inputs import is_sparse
from pathsgd.network.record.lost import lost_results
from pathsgd.network.record.origins import (
    LEAVING,
    PLAIN,
    RANDOM,
    SHAPED_BY_VALUES,
    Origin,
    Origins,
    joined,
)
from pathsgd.network.record.path_tensor import (
    Lost,
    PathTensor,
    Watcher,
    known_values,
    share_memory,
    without_data,
)
from pathsgd.network.record.seen import Seen, key_of
from pathsgd.network.rules import REFUSED, RULES, Kind, Refusal, Rule
from pathsgd.network.rules.pointwise import Add, Divide
from pathsgd.network.tape import Recording, Step, Value, leaves, map_leaves, values_in


def is_recording() -> bool:
    """Whether a model is being recorded right now: what forward hooks see then is not data."""
    return any(isinstance(mode, Recorder) for mode in _get_current_function_mode_stack())


_THE_MODEL = "the model itself"


class Recorder(Watcher):
    """While active, everything that happens to the model's parameters and inputs goes into `recording`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        # As `_where` says it; one string for all steps of a module.
        self._modules = {
            id(m): f"module '{n}'" if n else _THE_MODEL for n, m in model.named_modules()
        }
        self._buffers = {id(b) for b in model.buffers()}
        # Plain tensors that paths were written into (x[i] = y); holding them keeps their ids their own.
        self._written: dict[int, tuple[Tensor, Value]] = {}
        self._origins = Origins()
        self._seen: dict[Any, Seen] = {}

    def input(self, tensor: Tensor, number: int) -> Tensor:
        """A stand-in for an input of the model; integers, truth values and sparse matrices stay, and are watched."""
        origin = Origin(frozenset([number]))
        if tensor.is_floating_point() and not is_sparse(tensor):
            return self._stand_in(tensor, tensor.dtype, origin)
        tensor = (
            tensor.detach()
        )  # one object for each input, also where the user gives one tensor twice
        self._origins.note(tensor, origin)
        return tensor

    def afresh(self, tensor: Tensor) -> Tensor:
        """What a measured part of the model gets for a lost value: an input, where paths start anew."""
        if not (isinstance(tensor, PathTensor) and isinstance(tensor.value, Lost)):
            return tensor
        value = Value(Kind.INPUT, tensor.shape, tensor.dtype)
        self.recording.inputs.append(value)
        return PathTensor(value, tensor.device)

    def _stand_in(self, tensor: Tensor, dtype: torch.dtype, origin: Origin) -> PathTensor:
        value = Value(Kind.INPUT, tensor.shape, dtype)
        self.recording.inputs.append(value)
        stand_in = PathTensor(value, tensor.device)
        stand_in.known, stand_in.origin = tensor, origin
        return stand_in

    def _use(self, origin: Origin) -> None:
        """The values that came from these inputs are part of what is recorded."""
        self.recording.structural |= origin.inputs

    def value_of(self, a: Any) -> Any:
        """The recorded value behind a tensor, or the object itself when it carries no paths."""
        if isinstance(a, PathTensor):
            return a.value
        if not isinstance(a, Tensor):
            return a
        if id(a) in self._written:
            return self._written[id(a)][1]
        name = self._parameters.get(id(a))
        if name is not None:
            return self.recording.parameters.setdefault(name, Value(Kind.WEIGHT, a.shape, a.dtype))
        if isinstance(a, nn.Parameter):
            raise ValueError(
                f"a Parameter of shape {tuple(a.shape)} is used in {self._where()} but not registered in the model; "
                "assign it to a module attribute or use torch.nn.ParameterList"
            )
        # Buffers are read anew at every evaluation; other constants as they are now, whatever happens to them later.
        return a if id(a) in self._buffers else a.clone()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = key_of(func, args, kwargs, self._parameters)
        if key in self._seen:
            return self._again(self._seen[key], func, args, kwargs)
        name = spelling.canonical_name(func)
        tensors = [a for a in leaves((args, kwargs)) if isinstance(a, Tensor)]
        if not any(self._is_ours(a) for a in tensors):
            return self._without_path(func, name, args, kwargs, tensors)
        if getattr(func, "__name__", "") == "requires_grad_":
            return args[0]
        if name.removesuffix(".__get__") in spelling.METADATA or (
            name == "type" and len(args) == 1 and not kwargs
        ):
            return func(*args, **kwargs)
        if name in spelling.LIKE or (name in spelling.LIKE_SECOND and not self._is_ours(args[0])):
            result = _initialised(name, func(*map_leaves(without_data, args), **kwargs))
            self._origins.note(result, Origin(noise=name in RANDOM))
            return result
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        for a in tensors:
            if isinstance(a, PathTensor) and isinstance(a.value, Lost):
                return lost_results(a.value.refusal, func, name, args, kwargs)
        try:
            return self._record(func, name, tuple(args), kwargs, tensors, key)
        except NoRule as no_rule:
            if self._has_known_values(tensors):
                return self._prepared(func, name, args, kwargs, tensors)
            refusal = UnsupportedOperation(
                no_rule.operation, self._where(), no_rule.advice, self._so_far()
            )
            return lost_results(refusal, func, name, args, kwargs)

    def _is_ours(self, a: Any) -> bool:
        return (
            isinstance(a, (PathTensor, nn.Parameter))
            or id(a) in self._parameters
            or id(a) in self._written
        )

    def _has_known_values(self, operands: Sequence[Tensor]) -> bool:
        """Whether all of these are made of inputs and constants alone."""
        return all(
            isinstance(a, PathTensor) and a.known is not None for a in operands if self._is_ours(a)
        )

    def _origin(self, tensors: Sequence[Tensor], name: str) -> Origin:
        made_of = [a.origin if isinstance(a, PathTensor) else self._origins.of(a) for a in tensors]
        return joined(made_of, noise=name in RANDOM)

    def _without_path(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """An operation that meets neither parameters nor floating-point inputs: torch's business, with exceptions."""
        if self._written and any(self._shares_written_memory(a) for a in tensors):
            self._refuse(
                name,
                "it uses a view of a tensor that paths were written into since; use the tensor itself",
            )
        origin = (
            PLAIN if name in spelling.LIKE and name not in RANDOM else self._origin(tensors, name)
        )
        if origin.inputs and name == "embedding":  # of a fixed table: another form of the input
            return self._record(func, name, tuple(args), kwargs, tensors, None)
        if name in LEAVING or name in SHAPED_BY_VALUES:
            self._use(origin)
            self.recording.steered |= origin.noise
        result = _initialised(name, func(*args, **kwargs))
        if origin.inputs and name == "one_hot":
            return self._stand_in(result, torch.get_default_dtype(), PLAIN)
        for r in (
            leaves(tuple(result) if isinstance(result, tuple) else result)
            if origin != PLAIN
            else ()
        ):
            if isinstance(r, Tensor):
                self._origins.note(r, origin)
        return result

    def _prepared(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """What no rule covers, done to inputs alone, makes other inputs of them."""
        origin = self._origin(tensors, name)
        if name in LEAVING or name in SHAPED_BY_VALUES:
            self._use(origin)
        result = func(*map_leaves(known_values, args), **map_leaves(known_values, kwargs))

        def stand_in(r: Any) -> Any:
            if not isinstance(r, Tensor):
                return r
            if r.is_floating_point():
                return self._stand_in(r, r.dtype, origin)
            self._origins.note(r, origin)
            return r

        if isinstance(result, tuple) and type(result) is not tuple:
            return type(result)(map(stand_in, result))
        return map_leaves(stand_in, result)

    def _shares_written_memory(self, a: Tensor) -> bool:
        storage = a.untyped_storage().data_ptr()
        return any(t.untyped_storage().data_ptr() == storage for t, _ in self._written.values())

    def _refuse(self, operation: str, advice: str) -> NoReturn:
        raise UnsupportedOperation(operation, self._where(), advice, self.recording)

    def _so_far(self) -> Recording:
        return replace(self.recording, steps=list(self.recording.steps))

    def _again(self, seen: Seen, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write down a call that was checked before (seen.py)."""
        operands = [a for a in args if isinstance(a, Tensor)]
        args, named = spelling.uniform_arguments(args, kwargs) if kwargs else (args, {})
        outputs, values = seen.outputs(), seen.rule.rewrite(*[self.value_of(a) for a in args])
        self.recording.steps.append(
            Step(seen.name, seen.rule, values, named, outputs, self._where())
        )
        tensors = tuple([PathTensor(v, operands[0].device) for v in outputs])
        if seen.rule.aliases:
            share_memory(operands, tensors)
        if seen.known:
            self._keep_values(func, seen.name, args, named, operands, tensors)
        return tensors[0] if seen.single else seen.pack(tensors)

    def _record(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
        key: Any,
    ) -> Any:
        """Write down a call; key: what tells it from others, None where it is not to be remembered."""
        if name in _PRODUCTS and is_sparse(args[0]) and len(args) == 2:
            return self._by_entries(*args)
        rule = RULES.get(name)
        if rule is None:
            unknown = (
                "rewrite it with supported operations (docs/rules.md lists them), or add a rule"
            )
            raise NoRule(resolve_name(func) or name, REFUSED.get(name, unknown))
        if kwargs.get("out") is not None:
            self._refuse(name, "out= writes where paths cannot follow; use the result")
        same = self._same_as(name, args, kwargs)
        if same is not None:
            return self.__torch_function__(same[0], (), same[1])
        target = (
            self._target(name, args, kwargs)
            if spelling.changes_its_operand(func, name, args, kwargs)
            else None
        )
        args, kwargs = spelling.uniform_arguments(args, kwargs)
        settled = self._settled(rule, name, args, kwargs)
        values, named = map_leaves(lambda a: self.value_of(a), settled)
        try:
            values = rule.rewrite(*values)
            check_call(rule, len(values), tuple(named))
            rule.check(*values, **named)
            rule.check_products(*values, **named)
        except Refusal as refusal:
            raise NoRule(name, str(refusal)) from None
        results, single, pack = results_of(func, rule, values, named)
        kind = rule.result_kind(v.kind for v in values_in((values, named)))
        outputs = tuple(
            Value(kind, r.shape, r.dtype) if r.is_floating_point() else None for r in results
        )
        self.recording.steps.append(Step(name, rule, values, named, outputs, self._where()))
        if target is not None:
            assert outputs[0] is not None
            return self._overwrite(target, outputs[0], name)
        tensors = tuple(
            r if v is None else PathTensor(v, operands[0].device) for v, r in zip(outputs, results)
        )
        if rule.aliases:
            share_memory(operands, tensors)
        self._keep_values(func, name, args, kwargs, operands, tensors)
        is_usual = None not in outputs and all(
            map(operator.is_, leaves(settled), leaves((args, kwargs)))
        )
        if key is not None and is_usual:
            shapes = [(r.shape, r.dtype) for r in results]
            self._seen[key] = Seen(
                name, rule, kind, shapes, single, pack, self._has_known_values(operands)
            )
        return tensors[0] if single else pack(tensors)

    def _by_entries(self, matrix: Tensor, units: Tensor) -> Any:
        """A sparse matrix of constants times values of units: a sum over its entries, as over the edges of a graph."""
        if self._is_ours(matrix):
            self._refuse(
                "a product with sparse units", "only constants may be sparse; use a dense tensor"
            )
        self._use(self._origins.of(matrix))
        entries = matrix.detach().to_sparse_coo().coalesce()
        rows, columns = entries.indices()
        weights = entries.values().reshape(-1, *[1] * (units.dim() - 1))
        start = torch.zeros(
            matrix.shape[0], *units.shape[1:], dtype=units.dtype, device=units.device
        )
        with self:
            return start.index_add(0, rows, units.index_select(0, columns) * weights)

    def _keep_values(
        self, func: Any, name: str, args: Any, kwargs: Any, operands: Any, tensors: Any
    ) -> None:
        """What is made of inputs and constants alone has values that are known."""
        if not self._has_known_values(operands):
            return
        result = func(*map_leaves(known_values, args), **map_leaves(known_values, kwargs))
        origin = self._origin(operands, name)
        for tensor, known in zip(tensors, (result,) if isinstance(result, Tensor) else result):
            if isinstance(tensor, PathTensor):
                tensor.known, tensor.origin = known, origin

    def _same_as(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Another call that says the same: lookups by constants are moves of weights, choices by dice are none.

        An embedding looked up by constants (positions) is the rows it takes; a weight indexed by an input is an
        embedding. Entries that dice choose all have their paths.
        """
        if (
            name == "embedding"
            and len(args) >= 2
            and self._is_ours(args[1])
            and not isinstance(args[0], PathTensor)
        ):
            renormalises = kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None
            if not renormalises and not self._origins.of(args[0]).inputs:
                return Tensor.__getitem__, (args[1], args[0])
        if name in ("__getitem__", "index_select") and self._is_weight(args[0]) and not kwargs:
            index = args[-1]
            is_index = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
            if (
                is_index
                and args[1:-1] in ((), (0,))
                and args[0].dim() == 2
                and self._origins.of(index).inputs
            ):
                return torch.nn.functional.embedding, (index, args[0])
        if (
            name == "masked_fill"
            and isinstance(args[1], Tensor)
            and self._origins.of(args[1]).noise
        ):
            return Tensor.clone, (args[0],)
        if (
            name == "where"
            and len(args) == 3
            and isinstance(args[0], Tensor)
            and self._origins.of(args[0]).noise
        ):
            return torch.add, (args[1], args[2])
        return None

    def _is_weight(self, a: Any) -> bool:
        value = self.value_of(a) if self._is_ours(a) else None
        return value is not None and value.kind is Kind.WEIGHT

    def _settled(self, rule: Rule, name: str, args: Any, kwargs: Any) -> Any:
        """The arguments with every tensor in its role.

        Noise that is added is nothing, any other noise is one. What comes from an input, multiplied with values of
        units, is a constant (a mask); truth values and integers are structure, except where they look words up;
        other numbers are inputs.
        """

        def settle(a: Any) -> Any:
            if not isinstance(a, Tensor) or self._is_ours(a):
                return a
            origin = self._origins.of(a)
            if origin.noise and (
                a.is_floating_point() or (a.dtype is torch.bool and rule.multiplies)
            ):
                return torch.zeros_like(a) if isinstance(rule, Add) else torch.ones_like(a)
            if not origin.inputs or name in ("embedding", "embedding_bag"):
                return a
            is_nothing = isinstance(rule, Add) and not bool(a.any())  # a state of zeros, masked
            if a.is_floating_point() and not isinstance(rule, Divide) and not is_nothing:
                return self._stand_in(a, a.dtype, origin)
            self._use(origin)
            return a

        args, kwargs = map_leaves(lambda a: settle(a), (args, kwargs))
        constants = self._multiplied_inputs(rule, args, kwargs)
        return (
            map_leaves(lambda a: a.known if id(a) in constants else a, (args, kwargs))
            if constants
            else (args, kwargs)
        )

    def _multiplied_inputs(self, rule: Rule, args: Any, kwargs: Any) -> set[int]:
        """Ids of the tensors made of inputs that are multiplied with values of units."""
        if not rule.multiplies:
            return set()
        tensors = {
            a.value: a
            for a in leaves((args, kwargs))
            if isinstance(a, PathTensor) and a.known is not None
        }
        if not tensors:
            return set()
        values, named = map_leaves(lambda a: self.value_of(a), (args, kwargs))
        constants: set[int] = set()
        try:
            products = rule.products(*rule.rewrite(*values), **named)
        except TypeError:
            return set()  # a form of call that is refused with its name
        for product in products:
            factors = [
                factor for factor in product if any(v.kind is not Kind.WEIGHT for v in factor)
            ]
            known = [v for factor in factors for v in factor if v in tensors]
            if len(factors) < 2 or not known:
                continue
            if len(known) == sum(map(len, factors)):
                raise NoRule(
                    rule.name, "it multiplies inputs with inputs and weights; do it in two steps"
                )
            for value in known:
                self._use(tensors[value].origin)
                constants.add(id(tensors[value]))
        return constants

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tensor an in-place operation changes; refused where the change would reach other tensors unseen."""
        target = args[0] if args else kwargs["input"]
        if isinstance(target, PathTensor):
            if target.value in self.recording.inputs and target.value.kind is Kind.INPUT:
                reason = "it changes the model's input in place; use the out-of-place form"
            elif target.borrowed:
                reason = "it changes a parameter or a collecting tensor through a view; use the out-of-place form"
            elif sum(tensor() is not None for tensor in target.sharing.values()) > 1:
                reason = "it changes a tensor in place while a view of it is in use; use the out-of-place form"
            else:
                return target
        elif id(target) in self._parameters:
            reason = "parameters must not be changed in the forward pass"
        elif id(target) in self._buffers:
            reason = "it writes paths into a buffer, which would outlive the forward pass; use a tensor of its own"
        elif target._is_view():
            reason = "it writes paths into a view of a plain tensor; collect results with torch.stack or with x[i] = y"
        else:
            return target
        self._refuse(f"{name} (in place)", reason)

    def _overwrite(self, target: Tensor, value: Value, name: str) -> Tensor | None:
        if isinstance(target, PathTensor):
            target.value = value
        else:
            self._written[id(target)] = (target, value)
        return None if name == "__setitem__" else target

    def _where(self) -> str:
        """The innermost module whose forward is running, found on the call stack: no hooks, nothing to undo."""
        frame: FrameType | None = sys._getframe(1)
        while (
            frame is not None and frame.f_code.co_filename == __file__
        ):  # the locals of a frame are slow to ask for
            frame = frame.f_back
        while frame is not None:
            if "self" in frame.f_code.co_varnames[:1]:
                where = self._modules.get(id(frame.f_locals.get("self")))
                if where is not None:
                    return where
            frame = frame.f_back
        return _THE_MODEL


_PRODUCTS = frozenset({"mm", "matmul", "_sparse_mm", "sparse.mm"})


def _initialised(name: str, result: Any) -> Any:
    return result.zero_() if name in spelling.UNINITIALISED else result

"""Writes down every operation of a forward pass through which paths flow.

The recorder is a `TorchFunctionMode`: it sees each torch function that the model calls, methods and
operators included. An operation that meets a parameter or a tensor with paths becomes a `Step` with
its rule. The result of an operation without a rule is lost: it is never passed through, and it is
an error only if a measured output depends on it.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    resolve_name,
)

from pathsgd.errors import UnsupportedOperation
from pathsgd.network.record import calls
from pathsgd.network.record.calls import Checked, NoRule
from pathsgd.network.record.inputs import is_sparse
from pathsgd.network.record.operands import Operands
from pathsgd.network.record.path_tensor import (
    CONSTANT,
    Origin,
    PathTensor,
    is_lost,
    known_values,
    share_memory,
    zeros_for,
)
from pathsgd.network.rules import REFUSED, RULES, Refusal, Rule
from pathsgd.network.tape import Recording, Step, Value, leaves, map_leaves, values_in


def is_recording() -> bool:
    """Whether a model is being recorded: forward hooks then see tensors without data."""
    return any(isinstance(mode, Recorder) for mode in _get_current_function_mode_stack())


_THE_MODEL = "the model itself"
_UNKNOWN = "rewrite it with supported operations (docs/rules.md lists them), or add a rule"
_PRODUCTS = frozenset({"mm", "matmul", "_sparse_mm", "sparse.mm"})


class Recorder(TorchFunctionMode):
    """While active, all that happens to the model's parameters and inputs goes to `recording`."""

    met_unseen: UnsupportedOperation | None = None
    """The refusal of an operation in compiled code, which the mode does not see."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.recording = Recording()
        self.operands = Operands(model, self.recording, self._where)
        self._modules = {
            id(m): f"module '{n}'" if n else _THE_MODEL for n, m in model.named_modules()
        }
        self._checked: dict[Any, Checked] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = calls.key_of(func, args, kwargs, self.operands.parameters)
        if key in self._checked:
            return self._repeated(self._checked[key], func, args, kwargs)
        name = calls.canonical_name(func)
        tensors = [a for a in leaves((args, kwargs)) if isinstance(a, Tensor)]
        if not any(map(self.operands.carries_paths, tensors)):
            return self._without_paths(func, name, args, kwargs, tensors)
        if getattr(func, "__name__", "") == "requires_grad_":
            return args[0]
        asks_type = name == "type" and len(args) == 1 and not kwargs
        if asks_type or name.removesuffix(".__get__") in calls.METADATA:
            return func(*args, **kwargs)
        is_like_second = name in calls.LIKE_SECOND and not self.operands.carries_paths(args[0])
        if name in calls.LIKE or is_like_second:
            result = _initialised(name, func(*map_leaves(zeros_for, args), **kwargs))
            self.operands.note(result, Origin(random=name in calls.RANDOM))
            return result
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        lost = next((a for a in tensors if is_lost(a)), None)
        if lost is not None:
            return calls.lost_results(lost.value.refusal, func, name, args, kwargs)  # type: ignore[attr-defined]
        try:
            return self._record(func, name, tuple(args), kwargs, tensors, key)
        except NoRule as no_rule:
            if self.operands.have_known_values(tensors):
                return self._new_inputs(func, name, args, kwargs, tensors)
            so_far = replace(self.recording, steps=list(self.recording.steps))
            refusal = UnsupportedOperation(no_rule.operation, self._where(), no_rule.advice, so_far)
            return calls.lost_results(refusal, func, name, args, kwargs)

    # ---- operations without paths ----------------------------------------------------------------

    def _without_paths(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """An operation on tensors with data: torch computes it, and origins are followed."""
        if any(map(self.operands.is_view_of_written, tensors)):
            advice = "it uses a view of a tensor that paths were written into since; "
            advice += "use the tensor itself"
            self._refuse(name, advice)
        is_constant = name in calls.LIKE and name not in calls.RANDOM
        origin = CONSTANT if is_constant else self.operands.joined_origin(tensors, name)
        if origin.inputs and name == "embedding":  # of a fixed table: another form of the input
            return self._record(func, name, tuple(args), kwargs, tensors, None)
        if name in calls.LEAVING or name in calls.SHAPED_BY_VALUES:
            self.operands.use(origin)
            self.recording.branches_at_random |= origin.random
        result = _initialised(name, func(*args, **kwargs))
        if origin.inputs and name == "one_hot":
            return self.operands.stand_in(result, torch.get_default_dtype(), CONSTANT)
        if origin != CONSTANT:
            for r in leaves(tuple(result) if isinstance(result, tuple) else result):
                if isinstance(r, Tensor):
                    self.operands.note(r, origin)
        return result

    def _new_inputs(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        """The results of an operation without a rule on inputs alone are inputs themselves."""
        origin = self.operands.joined_origin(tensors, name)
        if name in calls.LEAVING or name in calls.SHAPED_BY_VALUES:
            self.operands.use(origin)

        def stand_in(r: Any) -> Any:
            if isinstance(r, Tensor) and r.is_floating_point():
                return self.operands.stand_in(r, r.dtype, origin)
            if isinstance(r, Tensor):
                self.operands.note(r, origin)
            return r

        return calls.map_results(stand_in, _on_known_values(func, args, kwargs))

    # ---- operations with paths -------------------------------------------------------------------

    def _record(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
        key: Any,
    ) -> Any:
        """Check a call and write it down. key: that of equal calls, None if there are none."""
        if name in _PRODUCTS and is_sparse(args[0]) and len(args) == 2:
            return self._by_entries(*args)
        rule = RULES.get(name)
        if rule is None:
            raise NoRule(resolve_name(func) or name, REFUSED.get(name, _UNKNOWN))
        if kwargs.get("out") is not None:
            self._refuse(name, "out= writes where paths cannot follow; use the result")
        same = self.operands.equivalent(name, args, kwargs)
        if same is not None:
            return self.__torch_function__(same[0], (), same[1])
        is_in_place = calls.changes_its_operand(func, name, args, kwargs)
        target = self._target(name, args, kwargs) if is_in_place else None
        args, kwargs = calls.uniform_arguments(args, kwargs)
        settled = self.operands.settled(rule, name, args, kwargs)
        checked, values, named = self._check(func, name, rule, *settled)
        outputs = self._step(checked, values, named)
        if target is not None:
            assert outputs[0] is not None
            self.operands.write(target, outputs[0])
            return None if name == "__setitem__" else target
        has_data = any(isinstance(r, Tensor) for r in checked.results)
        is_as_given = all(map(operator.is_, leaves(settled), leaves((args, kwargs))))
        if key is not None and not has_data and is_as_given:
            self._checked[key] = checked
        return self._results(checked, outputs, operands, func, args, kwargs)

    def _repeated(self, checked: Checked, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Write down a call that equals one that was checked before."""
        operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if kwargs:
            args, kwargs = calls.uniform_arguments(args, kwargs)
        value_of = self.operands.value_of
        values = checked.rule.rewrite(*map(value_of, args))
        outputs = self._step(checked, values, {k: value_of(a) for k, a in kwargs.items()})
        return self._results(checked, outputs, operands, func, args, kwargs)

    def _check(
        self, func: Any, name: str, rule: Rule, args: Any, kwargs: Any
    ) -> tuple[Checked, Any, Any]:
        """The call, with values for its operands; raises NoRule if the rule does not cover it."""
        values, named = map_leaves(self.operands.value_of, (args, kwargs))
        try:
            values = rule.rewrite(*values)
            calls.check_call(rule, len(values), tuple(named))
            rule.check(*values, **named)
            rule.check_products(*values, **named)
        except Refusal as refusal:
            raise NoRule(name, str(refusal)) from None
        results, single, pack = calls.results_of(func, rule, values, named)
        kind = rule.result_kind(v.kind for v in values_in((values, named)))
        shapes = [(r.shape, r.dtype) if r.is_floating_point() else r for r in results]
        return Checked(name, rule, kind, shapes, single, pack), values, named

    def _step(self, checked: Checked, values: Any, named: Any) -> tuple[Value | None, ...]:
        """Append the step of a call; returns its outputs."""
        outputs = checked.outputs()
        step = Step(checked.name, checked.rule, values, named, outputs, self._where())
        self.recording.steps.append(step)
        return outputs

    def _results(
        self,
        checked: Checked,
        outputs: tuple[Value | None, ...],
        operands: list[Tensor],
        func: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """What the model gets for the results of a call."""
        device = operands[0].device
        tensors = tuple(
            [
                r if isinstance(r, Tensor) else PathTensor(v, device)  # type: ignore[arg-type]
                for r, v in zip(checked.results, outputs)
            ]
        )
        if checked.rule.aliases:
            share_memory(operands, tensors)
        if self.operands.have_known_values(operands):
            result = _on_known_values(func, args, kwargs)
            origin = self.operands.joined_origin(operands, checked.name)
            for tensor, known in zip(tensors, (result,) if isinstance(result, Tensor) else result):
                if isinstance(tensor, PathTensor):
                    tensor.known, tensor.origin = known, origin
        return tensors[0] if checked.single else checked.pack(tensors)

    def _by_entries(self, matrix: Tensor, units: Tensor) -> Any:
        """A sparse constant matrix times values of units: a sum over the edges of a graph."""
        if self.operands.carries_paths(matrix):
            advice = "only constants may be sparse; use a dense tensor"
            self._refuse("a product with sparse units", advice)
        self.operands.use(self.operands.origin(matrix))
        entries = matrix.detach().to_sparse_coo().coalesce()
        rows, columns = entries.indices()
        weights = entries.values().reshape(-1, *[1] * (units.dim() - 1))
        shape = (matrix.shape[0], *units.shape[1:])
        start = torch.zeros(shape, dtype=units.dtype, device=units.device)
        with self:
            return start.index_add(0, rows, units.index_select(0, columns) * weights)

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tensor that an in-place operation changes, if the change can be followed."""
        target: Tensor = args[0] if args else kwargs["input"]
        reason = self.operands.refusal_of_writing(target)
        if reason is not None:
            self._refuse(f"{name} (in place)", reason)
        return target

    def _refuse(self, operation: str, advice: str) -> NoReturn:
        raise UnsupportedOperation(operation, self._where(), advice, self.recording)

    def _where(self) -> str:
        """The innermost module whose forward is running, found on the call stack."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back  # f_locals is slow: skip the recorder's own frames
        while frame is not None:
            if "self" in frame.f_code.co_varnames[:1]:
                where = self._modules.get(id(frame.f_locals.get("self")))
                if where is not None:
                    return where
            frame = frame.f_back
        return _THE_MODEL


def _on_known_values(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on inputs and constants, whose values are known."""
    return func(*map_leaves(known_values, args), **map_leaves(known_values, kwargs))


def _initialised(name: str, result: Any) -> Any:
    return result.zero_() if name in calls.UNINITIALISED else result
